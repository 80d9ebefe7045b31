"""Count how often a message was started and not finished; the count survives a killed worker.

A message that kills the whole worker comes back unchanged, like the others in the worker's memory. So before a
redelivered message runs, the worker puts a mark into a small queue for this message. After the run it deletes the
queue. The marks that it finds at the next delivery are runs that did not end.
"""

from __future__ import annotations

import json
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING

from amqp import spec
from amqp.exceptions import NotFound

from celery_dlx_retry.broker.declare import declare
from celery_dlx_retry.broker.header_frames import accept_undecodable_headers
from celery_dlx_retry.topology.specs import BindingSpec, ExchangeSpec, QueueSpec, Topology

if TYPE_CHECKING:
    from celery_dlx_retry.broker.sync_publisher import Publisher
    from celery_dlx_retry.topology.names import Names

_DAY_MS = 24 * 3600 * 1000


def marks_of(names: Names, task_id: str, *, queue: str) -> QueueSpec:
    """Return the queue for the marks of one message. It holds no task, so it may expire.

    A copy of the message in another work queue has the same id and another queue for its marks.
    """
    from hashlib import sha256  # noqa: PLC0415 - for suspect messages only, and it loads OpenSSL

    digest = sha256(json.dumps([queue, task_id]).encode()).hexdigest()[:32]
    return QueueSpec(
        name=names.crash_marks(digest),
        arguments=(("x-queue-type", "classic"), ("x-expires", _DAY_MS)),
    )


def count(publisher: Publisher, marks: QueueSpec, *, worker: str) -> int:
    """Return how many runs other workers have started and not ended.

    Marks of this worker do not count: it is alive. Such a run goes on, or was cancelled when the connection broke.
    """
    with publisher.connection() as connection, closing(connection.channel()) as channel:
        accept_undecodable_headers(connection)
        try:
            channel.queue_declare(marks.name, passive=True)
        except NotFound:
            return 0
        workers = [mark.body for mark in iter(lambda: channel.basic_get(marks.name), None)]
        channel.send_method(spec.Basic.Recover, "b", (True,), wait=spec.Basic.RecoverOk)
    return sum(it not in {worker, worker.encode()} for it in workers)


def mark(publisher: Publisher, marks: QueueSpec, *, names: Names, worker: str) -> None:
    """Publish the mark of a run that starts now; return when the broker has confirmed it."""
    # Not by the default exchange: a worker that may write to it could write to every queue.
    exchange = names.lanes()
    topology = Topology(
        exchanges=(ExchangeSpec(name=exchange, kind="direct"),),
        queues=(marks,),
        bindings=(BindingSpec(exchange=exchange, queue=marks.name, routing_key=marks.name),),
    )
    with publisher.producer(mend=partial(declare, topology=topology)) as producer:
        producer.publish(
            worker, exchange=exchange, routing_key=marks.name, content_type="text/plain", content_encoding="utf-8"
        )


def forget(publisher: Publisher, marks: QueueSpec) -> None:
    """Delete the marks: the run has ended."""
    with publisher.connection() as connection, closing(connection.channel()) as channel:
        channel.queue_delete(marks.name)
