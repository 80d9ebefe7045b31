"""The interface to publish one message: the caller learns later, or at once, whether the broker has it.

``async_publisher.Pipeline`` calls back from an event loop. ``sync_publisher.WaitingOutbox`` waits for the confirm.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TypeAlias

from celery_dlx_retry.errors import PublishError, TopologyError, Unpublishable

if TYPE_CHECKING:
    from celery_dlx_retry.wire.message import Message

#: The broker is not known to have the message, or it cannot have it.
Problem: TypeAlias = PublishError | TopologyError | Unpublishable
#: Called once: with None when the broker has confirmed the message, else with the problem.
Then: TypeAlias = Callable[[Problem | None], None]


class Outbox(Protocol):
    """Publishes messages, confirmed and mandatory."""

    def publish(self, message: Message, *, exchange: str, routing_key: str, then: Then) -> None:
        """Publish one message and call ``then``."""
