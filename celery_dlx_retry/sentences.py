"""Sentences of errors: any value can be a part of one, however long it is, and also if it cannot be printed."""

from __future__ import annotations

from string import Formatter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

#: Python does not print an int with more than 4300 digits.
LARGEST = 10**4000
_LONG, _BRIEF = 2_000, 200


class _Brief(Formatter):
    """Writes a sentence with facts that are long, or that cannot be printed."""

    def convert_field(self, value: Any, conversion: Any) -> str:
        return brief(value, repr if conversion == "r" else str)


def brief(value: object, write: Callable[[object], str] = repr) -> str:
    """Return the repr of any value: it may have a megabyte, or raise, as that of an int of 5,000 digits does."""
    try:
        text = write(value)
    except Exception:  # noqa: BLE001 - the object of a user
        return f"<{type(value).__name__}>"
    return text if len(text) <= _BRIEF else f"{text[:_BRIEF]}…"


def written(sentence: str, facts: dict[str, Any]) -> str:
    """Return the sentence with the facts in it, whatever objects these are."""
    try:
        text = sentence.format(**facts)
    except KeyError:
        raise  # a fact is missing
    except Exception:  # noqa: BLE001 - the object of a user
        text = ""
    return text if text and len(text) <= _LONG else _Brief().format(sentence, **facts)
