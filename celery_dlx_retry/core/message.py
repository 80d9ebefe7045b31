"""A message as it lies in a queue, as a value."""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - a dataclass field
from dataclasses import dataclass, replace
from typing import Any


# No slots: it goes between the processes of a worker twice for every retry, and pickle asks a class with slots for its
# fields each time.
@dataclass(frozen=True, kw_only=True)
class Message:
    """Everything of it that a publish takes; the body is raw, never decoded."""

    body: bytes | str
    content_type: str | None
    content_encoding: str | None
    headers: Mapping[str, Any]
    properties: Mapping[str, Any]
    #: How to compress the body before it is published: kombu's consumer has undone it and left the header.
    compression: str | None = None

    def with_headers(self, headers: Mapping[str, Any]) -> Message:
        """The same message under other headers."""
        return replace(self, headers=headers)
