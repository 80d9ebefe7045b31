"""Look into a queue that nobody consumes: its messages stay there, in their places, and keep their time to live."""

from __future__ import annotations

from collections import deque
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from amqp import spec
from amqp.exceptions import AccessRefused, AMQPError, NotFound

from celery_dlx_retry.core.message import Message
from celery_dlx_retry.errors import Forbidden, Missing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from kombu.connection import Connection

# The broker sends what there is without pause; this long is only waited when something expired after it was counted.
_PATIENCE_SECONDS = 1.0
_LARGEST_PREFETCH = 65_535


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """What a passive declare tells: messages that wait to be delivered, not those that somebody holds."""

    ready: int
    consumers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A message in its queue; ``acknowledge`` takes it out."""

    message: Message
    exchange: str
    routing_key: str
    acknowledge: Callable[[], None]


def counts(connection: Connection, names: Iterable[str]) -> dict[str, Counts]:
    """Those of these queues that exist."""
    found = {}
    with closing(connection.channel()) as channel:
        for name in names:
            try:
                declared = channel.queue_declare(name, passive=True)
            except NotFound:
                continue  # py-amqp has opened the channel again
            except AccessRefused as exc:
                raise Forbidden(kind="queue", name=name, permission="look at") from exc
            found[name] = Counts(ready=declared.message_count, consumers=declared.consumer_count)
    return found


@contextmanager
def looking(connection: Connection, queue: str, *, limit: int | None = None) -> Iterator[Iterator[Seen]]:
    """The first messages of a queue, oldest first; what is not acknowledged goes back when the block ends.

    They are delivered to a consumer, so that the broker counts one as long as we hold any of them: it would delete a
    queue "if empty" whose messages are held, with them (test_a_lane_that_somebody_looks_into_is_not_pruned).
    """
    with closing(connection.channel()) as channel:
        channel.auto_decode = False
        try:
            there = channel.queue_declare(queue, passive=True).message_count
        except NotFound as exc:
            raise Missing(kind="queue", name=queue, cure="It is made when a worker starts.") from exc
        wanted = there if limit is None else min(there, limit)
        if not wanted:
            yield iter(())
            return
        arrived: deque[Any] = deque()
        channel.basic_qos(0, wanted if wanted <= _LARGEST_PREFETCH else 0, False)  # noqa: FBT003 - py-amqp's
        tag = channel.basic_consume(queue, callback=arrived.append)
        try:
            yield _seen(connection, channel, arrived, wanted)
        except (KeyboardInterrupt, AMQPError, OSError):
            # Perhaps in the middle of an answer: there is no talking on this connection any more, and when it is gone
            # the broker takes back what is not acknowledged.
            connection.collect()
            raise
        finally:
            # Politely: to close the channel counts as a failed delivery on quorum queues. Not while we consume, or
            # we would get it all again.
            if channel.connection is not None:
                channel.basic_cancel(tag)
                channel.send_method(spec.Basic.Recover, "b", (True,), wait=spec.Basic.RecoverOk)


def _seen(connection: Connection, channel: Any, arrived: deque[Any], wanted: int) -> Iterator[Seen]:
    for _ in range(wanted):
        while not arrived:
            try:
                connection.drain_events(timeout=_PATIENCE_SECONDS)
            except TimeoutError:  # noqa: PERF203 - how drain_events says "nothing more"
                return
        yield _one(channel, arrived.popleft())


def _one(channel: Any, raw: Any) -> Seen:
    return Seen(
        message=Message(
            body=raw.body,
            content_type=raw.properties.get("content_type"),
            content_encoding=raw.properties.get("content_encoding"),
            headers=raw.properties.get("application_headers") or {},
            properties=raw.properties,
        ),
        exchange=raw.delivery_info["exchange"],
        routing_key=raw.delivery_info["routing_key"],
        acknowledge=lambda: channel.basic_ack(raw.delivery_tag),
    )
