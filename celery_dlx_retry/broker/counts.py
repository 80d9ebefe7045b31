"""Count the messages and consumers of queues."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, NamedTuple

from amqp.exceptions import AccessRefused, NotFound

from celery_dlx_retry.errors import Forbidden

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kombu.connection import Connection


class Counts(NamedTuple):
    """The counts of a passive declare: messages that are ready, without those that a consumer holds."""

    ready: int
    consumers: int


def counts(connection: Connection, names: Iterable[str], *, permission: str = "look at") -> dict[str, Counts]:
    """Return the counts of those of these queues that exist; an error names this permission."""
    counted = {}
    with closing(connection.channel()) as channel:
        for name in names:
            try:
                declared = channel.queue_declare(name, passive=True)
            except NotFound:
                continue  # py-amqp has opened the channel again
            except AccessRefused as exc:  # RabbitMQ 4 shows a queue only to a user with a permission on it
                raise Forbidden(kind="queue", name=name, permission=permission) from exc
            counted[name] = Counts(declared.message_count, declared.consumer_count)
    return counted


def depth(connection: Connection, queue: str) -> int | None:
    """Return how many messages of a queue are ready; None if it does not exist."""
    found = counts(connection, [queue], permission="read").get(queue)
    return None if found is None else found.ready
