"""The header with the names and raw bytes of headers and properties that py-amqp cannot decode."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: A table of names and raw bytes. broker/frames.py writes it into a message that py-amqp cannot decode.
UNREADABLE = "dlx-unreadable"
_MOST_NAMES = 5


def unreadable_of(headers: Mapping[str, Any]) -> str:
    """Name the headers and properties that cannot be read, with their sizes; empty if all can be read."""
    unreadable = headers.get(UNREADABLE)
    if not isinstance(unreadable, Mapping):
        return ""
    names = [f"{name!s:.60} ({_size(raw)})" for name, raw in list(unreadable.items())[:_MOST_NAMES]]
    more = len(unreadable) - len(names)
    return ", ".join(names) + (f" and {more} more" if more else "")


def _size(raw: Any) -> str:
    return f"{len(raw)} bytes" if isinstance(raw, (bytes, str)) and raw else "too long to keep"
