"""Read the messages of a queue without consumers: they keep their places and their time to live."""

from __future__ import annotations

import time
from collections import deque
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from amqp import spec
from amqp.exceptions import AccessRefused, AMQPError, NotFound

from celery_dlx_retry.broker.header_frames import accept_undecodable_headers
from celery_dlx_retry.broker.paged_reader import Reader, message_of
from celery_dlx_retry.errors import Forbidden, Missing, QueueBusy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kombu.connection import Connection

    from celery_dlx_retry.settings import QueueType
    from celery_dlx_retry.wire.message import Message

_PATIENCE_SECONDS = 1.0
_POLL_SECONDS = 0.05
_LARGEST_PREFETCH = 65_535
# A quorum queue's count lags behind.
_UNCOUNTED = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class PeekedMessage:
    """A message in its queue; ``acknowledge`` removes it."""

    message: Message
    exchange: str
    routing_key: str
    acknowledge: Callable[[], None]


@contextmanager
def peek(
    connection: Connection, queue: str, *, kind: QueueType, limit: int | None = None
) -> Iterator[Iterator[PeekedMessage]]:
    """Yield the first messages of a queue, oldest first; give back the others when the block ends.

    They are delivered to a consumer. This is fast, and shows that the queue is in use: with "if empty" the broker would
    delete a queue whose messages are all held.

    A classic queue puts each message back into its place. A quorum queue puts it behind those that were given back
    before. So there we read the whole queue, whatever the limit, and only if no other consumer does; then the order
    stays (test_looks_at_many_leave_order_and_due_times).
    """
    look = _quorum(connection, queue) if kind == "quorum" else _classic(connection, queue, limit)
    with may_read(queue), look as messages:
        try:
            yield islice(messages, limit)
        except AccessRefused:
            raise  # the broker has answered, and closed only this channel
        except (KeyboardInterrupt, AMQPError, OSError):
            # We may be in the middle of an answer, so this connection is no longer usable. When it is closed, the
            # broker takes back every message that is not acknowledged.
            connection.collect()
            raise


@contextmanager
def may_read(queue: str) -> Iterator[None]:
    """Raise Forbidden if the broker refuses to let this user read a queue."""
    try:
        yield
    except AccessRefused as exc:
        raise Forbidden(kind="queue", name=queue, permission="read") from exc


@contextmanager
def _quorum(connection: Connection, queue: str) -> Iterator[Iterator[PeekedMessage]]:
    with closing(connection.channel()) as channel, _existing(queue):
        counted = _alone(channel, queue).message_count
    reader = Reader(connection, queue)
    messages = reader.messages(2 * counted + _UNCOUNTED)
    try:
        yield (_one(raw, reader.acknowledge_last) for raw in messages)
    finally:
        if reader.is_open:
            deque(messages, maxlen=0)
            reader.give_back(counted=True)


@contextmanager
def _classic(connection: Connection, queue: str, limit: int | None) -> Iterator[Iterator[PeekedMessage]]:
    with closing(connection.channel()) as channel:
        accept_undecodable_headers(connection)
        channel.auto_decode = False
        with _existing(queue):
            counted = channel.queue_declare(queue, passive=True).message_count
        most = counted if limit is None else min(limit, counted)
        if not most:
            yield iter(())
            return
        arrived: deque[Any] = deque()
        is_looking = True

        def arrive(raw: Any) -> None:
            if is_looking:
                arrived.append(raw)  # later ones go back unread, and may be many

        channel.basic_qos(0, most if most <= _LARGEST_PREFETCH else 0, False)  # noqa: FBT003 - py-amqp's
        tag = channel.basic_consume(queue, callback=arrive)
        try:
            yield (
                _one(raw, partial(channel.basic_ack, raw.delivery_tag))
                for raw in _deliveries(connection, channel, arrived, most=most)
            )
        finally:
            is_looking = False
            if channel.connection is not None:
                channel.basic_cancel(tag)  # or the broker would deliver all of it again
                channel.send_method(spec.Basic.Recover, "b", (True,), wait=spec.Basic.RecoverOk)


@contextmanager
def _existing(queue: str) -> Iterator[None]:
    try:
        yield
    except NotFound as exc:
        raise Missing(kind="queue", name=queue, cure="A worker makes it at its start.") from exc


def _alone(channel: Any, queue: str) -> Any:
    """Return the answer to a passive declare when the queue has no consumer; one that has ended counts for a moment."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while (declared := channel.queue_declare(queue, passive=True)).consumer_count:
        if time.monotonic() > deadline:
            raise QueueBusy(queue=queue, problem="another process reads it; try again in a moment")
        time.sleep(_POLL_SECONDS)  # noqa: TID251 - the broker does not call back
    return declared


def _deliveries(connection: Connection, channel: Any, arrived: deque[Any], *, most: int) -> Iterator[Any]:
    """Yield the messages until none arrives: some may have expired since the broker counted them."""
    for _ in range(most):
        while not arrived:
            try:
                connection.drain_events(timeout=_PATIENCE_SECONDS)
            except TimeoutError:  # noqa: PERF203 - how drain_events says "nothing more"
                # RabbitMQ 4 takes seconds for a redelivered message with deeply nested headers. It answers in order.
                channel.basic_qos(0, 0, False)  # noqa: FBT003 - py-amqp's
                if not arrived:
                    return
        yield arrived.popleft()


def _one(raw: Any, acknowledge: Callable[[], None]) -> PeekedMessage:
    return PeekedMessage(
        message=message_of(raw),
        exchange=raw.delivery_info["exchange"],
        routing_key=raw.delivery_info["routing_key"],
        acknowledge=acknowledge,
    )
