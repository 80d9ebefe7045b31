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


@dataclass(frozen=True, kw_only=True)  # no slots, as above
class PreparedRetry:
    """A retry that is written and not yet published: the worker's main process does that, and waits for no confirm."""

    message: Message
    length_ms: int
    #: The error that it retries: ``Type: text``.
    error: str


# What a worker needs to run a task, and its body to be decoded.
_NEEDED = ("lang", "task", "id", "compression")
_LONGEST_NAME = 255


def bare(message: Message) -> Message:
    """Return the body of a message with no properties, and with no headers but what a worker needs to run it."""
    needed = ((name, message.headers.get(name)) for name in _NEEDED)
    headers = {name: value for name, value in needed if isinstance(value, str) and len(value) <= _LONGEST_NAME}
    return replace(message, headers=headers, properties={})
