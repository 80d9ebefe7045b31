"""Send a message to one queue by its name, without the default exchange.

Write permission on the default exchange (`amq.default`) is write permission on every queue of the virtual host. Our own
direct exchanges do the same for those queues only that the broker user may bind: RabbitMQ asks for write permission on
the queue (test_an_operator_reaches_only_queues_that_it_may_write).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from celery_dlx_retry.broker.declare import bind
from celery_dlx_retry.core.topology import BindingSpec, Topology
from celery_dlx_retry.errors import Missing, Unroutable

if TYPE_CHECKING:
    from kombu.connection import Connection

    from celery_dlx_retry.broker.publish import Publisher
    from celery_dlx_retry.core.message import Message
    from celery_dlx_retry.core.topology import Names


def lead_back(connection: Connection, names: Names, queue: str) -> None:
    """Bind a work queue to the return exchange, where it nearly always is bound already.

    Call it before you publish there: the exchange parks what it cannot route with the orphans. Raise Unroutable if the
    queue does not exist, Forbidden if the broker user may not write to it.
    """
    _bind(connection, exchange=names.back(), queue=queue)


def put(publisher: Publisher, names: Names, queue: str, message: Message, *, as_found: bool = False) -> None:
    """Publish into a queue that is no work queue; raise PublishError if the message is not there then."""
    with publisher.producer(mend=partial(_bind, exchange=names.lanes(), queue=queue)) as producer:
        producer.publish_message(message, exchange=names.lanes(), routing_key=queue, as_found=as_found)


def _bind(connection: Connection, *, exchange: str, queue: str) -> None:
    binding = BindingSpec(exchange=exchange, queue=queue, routing_key=queue)
    try:
        bind(connection, Topology(bindings=(binding,)))
    except Missing as exc:
        raise Unroutable(exchange=exchange, routing_key=queue) from exc
