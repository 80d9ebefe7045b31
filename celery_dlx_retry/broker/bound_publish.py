"""Send a message to one queue by its name, without the default exchange.

A user that may write to the default exchange (`amq.default`) can write to every queue of the virtual host. Our direct
exchanges reach only queues that the user may bind, for which RabbitMQ requires write permission on the queue
(test_an_operator_reaches_only_queues_that_it_may_write).
"""

from __future__ import annotations

import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from amqp.exceptions import ResourceLocked

from celery_dlx_retry.broker.declare import bind
from celery_dlx_retry.errors import Missing, Unroutable
from celery_dlx_retry.topology.specs import BindingSpec, Topology

if TYPE_CHECKING:
    from kombu.connection import Connection

    from celery_dlx_retry.broker.sync_publisher import Publisher
    from celery_dlx_retry.topology.names import Names
    from celery_dlx_retry.wire.message import Message


#: How long a binding counts as fresh. A round trip before each message would double the time of a replay.
FRESH_SECONDS = 1.0


class WorkQueuePublisher:
    """Publishes to work queues through the return exchange.

    The exchange parks a message without a queue among the orphans, and the broker confirms that, too. So each queue is
    bound first, and again every second. It nearly always is bound already; if it is gone, the broker answers so.
    """

    def __init__(self, publisher: Publisher, names: Names) -> None:
        self._publisher, self._exchange = publisher, names.return_exchange()
        self._bound_at: dict[str, float] = {}

    def publish(self, queue: str, message: Message) -> None:
        """Publish; raise Unroutable if the queue does not exist, Forbidden if the broker user may not write to it."""
        with self._publisher.producer() as producer:
            if time.monotonic() - self._bound_at.get(queue, -FRESH_SECONDS) >= FRESH_SECONDS:
                with suppress(ResourceLocked):  # exclusive: only the worker that consumes it can bind it, and does
                    _bind(producer.connection, exchange=self._exchange, queue=queue)
                self._bound_at[queue] = time.monotonic()
            producer.publish_message(message, exchange=self._exchange, routing_key=queue)


def publish_to_queue(
    publisher: Publisher, names: Names, queue: str, message: Message, *, as_found: bool = False
) -> None:
    """Publish into a queue that is no work queue; raise PublishError if the message is not there then."""
    with publisher.producer(mend=partial(_bind, exchange=names.lanes(), queue=queue)) as producer:
        producer.publish_message(message, exchange=names.lanes(), routing_key=queue, as_found=as_found)


def _bind(connection: Connection, *, exchange: str, queue: str) -> None:
    binding = BindingSpec(exchange=exchange, queue=queue, routing_key=queue)
    try:
        bind(connection, Topology(bindings=(binding,)))
    except Missing as exc:
        raise Unroutable(exchange=exchange, routing_key=queue) from exc
