"""Write the sentences of errors. A value in a sentence may be very long, or raise when it is printed."""

from __future__ import annotations

from string import Formatter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

#: Python does not print an int with more than 4300 digits.
LARGEST = 10**4000
_LONG, _BRIEF = 2_000, 200


class _Brief(Formatter):
    """Formats each fact with ``brief()``."""

    def convert_field(self, value: Any, conversion: Any) -> str:
        return brief(value, repr if conversion == "r" else str)


def brief(value: object, write: Callable[[object], str] = repr) -> str:
    """Return the first characters of a value's repr, or the name of its type if repr() raises."""
    try:
        text = write(value)
    except Exception:  # noqa: BLE001 - the object of a user
        return f"<{type(value).__name__}>"
    return text if len(text) <= _BRIEF else f"{text[:_BRIEF]}…"


def counted(number: int, noun: str) -> str:
    """Return ``1 lane``, ``2 lanes``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def written(sentence: str, facts: dict[str, Any]) -> str:
    """Return the sentence with the facts in it."""
    try:
        text = sentence.format(**facts)
    except KeyError:
        raise  # a fact is missing
    except Exception:  # noqa: BLE001 - the object of a user
        text = ""
    return text if text and len(text) <= _LONG else _Brief().format(sentence, **facts)
