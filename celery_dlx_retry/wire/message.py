"""A message of a queue as a value."""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - a dataclass field
from dataclasses import dataclass, replace
from typing import Any

# Not user_id: the broker takes it from that user alone (test_what_another_user_signed_can_be_moved).
KEPT_PROPERTIES = frozenset(
    ("priority", "correlation_id", "reply_to", "message_id", "timestamp", "type", "app_id", "cluster_id")
)


# No slots: it goes to a pool process with every task, and pickle asks a class with slots for its fields each time.
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

    @property
    def kept_properties(self) -> dict[str, Any]:
        """The properties that a copy of the message has."""
        return {key: value for key, value in self.properties.items() if key in KEPT_PROPERTIES}


# What a worker needs to run a task, and its body to be decoded.
_NEEDED = ("lang", "task", "id", "compression")
_LONGEST_NAME = 255


def bare(message: Message) -> Message:
    """Return the body of a message with no properties, and with no headers but what a worker needs to run it."""
    needed = ((name, message.headers.get(name)) for name in _NEEDED)
    headers = {name: value for name, value in needed if isinstance(value, str) and len(value) <= _LONGEST_NAME}
    return replace(message, headers=headers, properties={})
