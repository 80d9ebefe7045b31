"""The header that holds what a client cannot decode of a message: names of headers and properties, and their bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: A table of name and raw bytes. A broker connection of ours writes it into a message that it could not decode whole.
UNREADABLE = "dlx-unreadable"
_MOST_NAMES = 5


def unreadable_of(headers: Mapping[str, Any]) -> str:
    """Name the headers and properties that cannot be read, with their sizes; empty if all can be read."""
    found = headers.get(UNREADABLE)
    if not isinstance(found, Mapping):
        return ""
    names = [f"{name!s:.60} ({_size(raw)})" for name, raw in list(found.items())[:_MOST_NAMES]]
    more = len(found) - len(names)
    return ", ".join(names) + (f" and {more} more" if more else "")


def _size(raw: Any) -> str:
    return f"{len(raw)} bytes" if isinstance(raw, (bytes, str)) and raw else "too long to keep"
