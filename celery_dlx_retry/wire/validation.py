"""Check a task message before Celery's worker gets it. Celery itself checks very little."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from celery_dlx_retry.values.durations import is_count

#: Attributes that Celery sets on a request. As a header each would make Celery report a retry that it never published.
FORGEABLE = frozenset(("is_eager", "called_directly", "_protected"))


def flaw_of(request: Mapping[str, Any]) -> str:
    """Return what is wrong with the headers and arguments of a task; empty if they are right."""
    for name, (is_sound, wanted) in _CHECKS.items():
        value = request.get(name)
        if (value is not None or name in _NEEDED) and not is_sound(value):
            return f"{name!r} is {type(value).__name__}; it must be {wanted}"
    return ""


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_table(value: Any) -> bool:
    return isinstance(value, Mapping)


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes))


def _is_list_of_text(value: Any) -> bool:
    return _is_list(value) and all(map(_is_text, value))


def _are_time_limits(value: Any) -> bool:
    return _is_list(value) and len(value) == 2 and all(map(_is_time_limit, value))  # noqa: PLR2004 - hard and soft


def _is_time_limit(value: Any) -> bool:
    return value is None or (isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 2**31)


_NEEDED = frozenset(("id", "task", "args", "kwargs"))
_CHECKS = {
    "id": (_is_text, "text"),
    "task": (_is_text, "text"),
    "args": (_is_list, "a list"),
    "kwargs": (_is_table, "a table"),
    "retries": (is_count, "a whole number from 0 on"),
    "timelimit": (_are_time_limits, "two numbers of seconds"),
    "shadow": (_is_text, "text"),
    "root_id": (_is_text, "text"),
    "parent_id": (_is_text, "text"),
    "group": (_is_text, "text"),
    "stamped_headers": (_is_list_of_text, "a list of texts"),
    "stamps": (_is_table, "a table"),
}
