"""Orphans: messages whose work queue did not exist when their wait was over.

A work queue may be gone for a while: an operator deleted it and a worker declares it again, or it is a classic queue
on a cluster node that is down, which RabbitMQ 3 treats as gone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery_dlx_retry.broker.bound_publish import WorkQueuePublisher
from celery_dlx_retry.broker.counts import counts
from celery_dlx_retry.broker.peek import peek
from celery_dlx_retry.errors import Forbidden, Nacked, Unpublishable, Unroutable
from celery_dlx_retry.wire.headers import without_broker_headers

if TYPE_CHECKING:
    from collections.abc import Collection

    from kombu.connection import Connection

    from celery_dlx_retry.broker.sync_publisher import Publisher
    from celery_dlx_retry.topology.names import Names

# All orphans are taken out of their queue for a moment to find those of one work queue.
MOST_ORPHANS = 10_000


def count_orphans(connection: Connection, names: Names) -> int:
    """Return how many orphans there are, as far as the broker says."""
    counted = counts(connection, [names.orphans()])
    return counted[names.orphans()].ready if counted else 0


def return_orphans(connection: Connection, names: Names, queues: Collection[str], *, publisher: Publisher) -> int:
    """Move the orphans of these work queues, which exist, back to them; return how many.

    Published, confirmed, acknowledged: a crash in between duplicates one message at most. The connection is for this
    call alone.
    """
    returned, open_queues = 0, set(queues)
    work_queues = WorkQueuePublisher(publisher, names)
    with peek(connection, names.orphans(), kind=names.kind) as messages:
        for seen in messages:
            if seen.routing_key not in open_queues:
                continue
            message = seen.message.with_headers(without_broker_headers(seen.message.headers))
            try:
                work_queues.publish(seen.routing_key, message)
            except Unpublishable:
                continue  # a fault of this message: it stays, and the others go on
            except (Unroutable, Nacked, Forbidden):
                # The queue is gone again, full, or forbidden: its orphans stay, and those of other queues go on.
                open_queues.discard(seen.routing_key)
                continue
            seen.acknowledge()
            returned += 1
    return returned
