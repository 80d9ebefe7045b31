"""Read dead letters without removing them. Bodies are bytes and are never decoded.

AMQP can only show a message by delivering it. So we hold the letters unacknowledged while we read, and other consumers
do not see them meanwhile. If we crash, the broker still has them.
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
    """Yield every dead letter in a queue, oldest first. They stay there; other consumers do not see them meanwhile."""
    with reading(connection, queue) as letters:
        for _, letter in letters:
            yield letter


def depth(connection: Connection, queue: str) -> int | None:
    """Return how many dead letters are in a queue, without those that a consumer holds; None if it does not exist."""
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
    """Yield the letters that are in the queue now, each with the function that removes it."""
    if depth(connection, queue) is None:
        raise Missing(kind="dead-letter queue", name=queue, cure="A worker makes it at its start.")
    reader = Reader(connection, queue, page=page)
    try:
        with may_read(queue):
            yield _letters(reader, queue)
    except (KeyboardInterrupt, AMQPError, OSError):
        # We may be in the middle of an answer, so this connection is no longer usable. When it is closed, the broker
        # takes back every message that is not acknowledged.
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
    # No more letters than at the start: a letter that was replayed and died again comes next time. The count is from a
    # get: the one from a declare lags behind on a quorum queue that was just read.
    for raw in reader.messages(first.delivery_info["message_count"]):
        yield reader.acknowledge_last, _letter(raw, queue)


def _letter(raw: Any, queue: str) -> DeadMessage:
    info = raw.delivery_info
    return dead_message(message_of(raw), queue=queue, exchange=info["exchange"], routing_key=info["routing_key"])
