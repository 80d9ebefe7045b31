"""Count how often a message was started and not finished, where a killed worker cannot take the count along.

A message that kills the whole worker comes back unchanged, like those that merely lay beside it in the worker's
memory. So before a redelivered message runs, a mark goes into a small queue of its own; after the run the queue is
deleted. What is found there at the next delivery are runs that nobody ended.
"""

from __future__ import annotations

import hashlib
from contextlib import closing
from typing import TYPE_CHECKING

from amqp.exceptions import NotFound

from celery_dlx_retry.core.topology import QueueSpec, Topology

if TYPE_CHECKING:
    from celery_dlx_retry.broker.publish import Publisher
    from celery_dlx_retry.core.topology import Names

_DAY_MS = 24 * 3600 * 1000


def marks_of(names: Names, task_id: str) -> QueueSpec:
    """The queue of one message's marks. It holds no task, so it may expire."""
    digest = hashlib.sha256(task_id.encode("utf-8", "replace")).hexdigest()[:32]
    return QueueSpec(
        name=names.starts(digest),
        arguments=(("x-queue-type", "classic"), ("x-expires", _DAY_MS)),
    )


def count(publisher: Publisher, marks: QueueSpec) -> int:
    """How many runs were started and not ended."""
    with publisher.connection() as connection, closing(connection.channel()) as channel:
        try:
            return int(channel.queue_declare(marks.name, passive=True).message_count)
        except NotFound:
            return 0


def mark(publisher: Publisher, marks: QueueSpec) -> None:
    """Remember that a run starts now; returns when the broker does."""
    with publisher.producer(needs=Topology(queues=(marks,))) as producer:
        producer.publish(b"", exchange="", routing_key=marks.name, content_type="text/plain", content_encoding="utf-8")


def forget(publisher: Publisher, marks: QueueSpec) -> None:
    """The run has ended, however it did."""
    with publisher.connection() as connection, closing(connection.channel()) as channel:
        channel.queue_delete(marks.name)
