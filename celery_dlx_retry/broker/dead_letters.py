"""Look at dead letters without harm; bodies are bytes here, and never decoded.

AMQP has no other way to look than to take, so what we look at is held, unacknowledged, until we are done: others do not
see it meanwhile, and whatever happens to us, the broker has it.
"""

from __future__ import annotations

from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING, Any

from amqp.exceptions import AMQPError, NotFound

from celery_dlx_retry.broker.paged_reader import PAGE, Reader, message_of
from celery_dlx_retry.broker.peek import may_read
from celery_dlx_retry.broker.work_queues import is_surely_classic
from celery_dlx_retry.deadletters.letter import dead_message
from celery_dlx_retry.errors import Missing

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from kombu.connection import Connection

    from celery_dlx_retry.deadletters.letter import DeadMessage


def browse(connection: Connection, queue: str) -> Generator[DeadMessage, None, None]:
    """Every dead letter in a queue, oldest first. They stay there; others do not see them while we look."""
    with reading(connection, queue) as letters:
        for _, letter in letters:
            yield letter


def depth(connection: Connection, queue: str) -> int | None:
    """How many dead letters nobody is looking at; None if there is no such queue."""
    with closing(connection.channel()) as channel:
        try:
            with may_read(queue):  # RabbitMQ 4 shows a queue only to a user with a permission on it
                return int(channel.queue_declare(queue, passive=True).message_count)
        except NotFound:
            return None


@contextmanager
def reading(
    connection: Connection, queue: str, *, page: int = PAGE
) -> Iterator[Iterator[tuple[Callable[[], None], DeadMessage]]]:
    """All that are there now, each with the way to take it off the queue for good."""
    if depth(connection, queue) is None:
        raise Missing(kind="dead-letter queue", name=queue, cure="It is made when a worker starts.")
    reader = Reader(connection, queue, page=page)
    try:
        with may_read(queue):
            yield _letters(reader, queue)
    except (KeyboardInterrupt, AMQPError, OSError):
        # Perhaps in the middle of an answer: there is no talking on this connection any more, and when it is gone
        # the broker takes back what is not acknowledged.
        with suppress(AMQPError, OSError):
            connection.collect()
        raise
    finally:
        if reader.is_open:
            reader.give_back(counted=not is_surely_classic(connection, queue))


def _letters(reader: Reader, queue: str) -> Iterator[tuple[Callable[[], None], DeadMessage]]:
    first = reader.first()
    if first is None:
        return
    yield reader.acknowledge_last, _letter(first, queue)
    # No more than there were: what is replayed and dies again comes next time. The count comes from a get, for that of
    # a declare lags behind on a quorum queue that somebody has just looked at.
    for found in reader.messages(first.delivery_info["message_count"]):
        yield reader.acknowledge_last, _letter(found, queue)


def _letter(found: Any, queue: str) -> DeadMessage:
    info = found.delivery_info
    return dead_message(message_of(found), queue=queue, exchange=info["exchange"], routing_key=info["routing_key"])
