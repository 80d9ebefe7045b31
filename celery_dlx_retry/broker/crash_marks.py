"""Count how often a message was started and not finished, where a killed worker cannot take the count along.

A message that kills the whole worker comes back unchanged, like those that merely lay beside it in the worker's
memory. So before a redelivered message runs, a mark goes into a small queue of its own; after the run the queue is
deleted. What is found there at the next delivery are runs that nobody ended.
"""

from __future__ import annotations

import hashlib
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
    """The queue of one message's marks. It holds no task, so it may expire.

    Copies of a message in other queues have the same id, and are not blamed for what this one did.
    """
    digest = hashlib.sha256(json.dumps([queue, task_id]).encode()).hexdigest()[:32]
    return QueueSpec(
        name=names.crash_marks(digest),
        arguments=(("x-queue-type", "classic"), ("x-expires", _DAY_MS)),
    )


def count(publisher: Publisher, marks: QueueSpec, *, worker: str) -> int:
    """How many runs were started and not ended, by workers other than this one, which is alive.

    Its own marks are of runs that go on, or were cancelled, when a connection broke and the broker delivered again.
    """
    with publisher.connection() as connection, closing(connection.channel()) as channel:
        accept_undecodable_headers(connection)
        try:
            channel.queue_declare(marks.name, passive=True)
        except NotFound:
            return 0
        found = [mark.body for mark in iter(lambda: channel.basic_get(marks.name), None)]
        channel.send_method(spec.Basic.Recover, "b", (True,), wait=spec.Basic.RecoverOk)
    return sum(body not in {worker, worker.encode()} for body in found)


def mark(publisher: Publisher, marks: QueueSpec, *, names: Names, worker: str) -> None:
    """Remember that this worker starts a run now; returns when the broker does."""
    # Not by the default exchange: a worker that may write to it may write to every queue.
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
    """The run has ended, however it did."""
    with publisher.connection() as connection, closing(connection.channel()) as channel:
        channel.queue_delete(marks.name)
