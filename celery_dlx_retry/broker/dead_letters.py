"""Read dead letters without removing them. Bodies are bytes and are never decoded.

AMQP can only show a message by delivering it. So we hold the letters unacknowledged while we read, and other consumers
do not see them meanwhile. If we crash, the broker still has them.
"""

from __future__ import annotations

import struct
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from amqp.exceptions import AMQPError
from amqp.serialization import dumps, loads

from celery_dlx_retry.broker.bound_publish import WorkQueuePublisher, publish_to_queue
from celery_dlx_retry.broker.counts import depth
from celery_dlx_retry.broker.paged_reader import PAGE, Reader, message_of
from celery_dlx_retry.broker.peek import may_read
from celery_dlx_retry.broker.sync_publisher import PROBE
from celery_dlx_retry.broker.work_queues import is_surely_classic
from celery_dlx_retry.deadletters.letter import dead_message
from celery_dlx_retry.errors import Forbidden, LetterError, Missing, Unpublishable, Unroutable
from celery_dlx_retry.events import with_written_headers
from celery_dlx_retry.wire.dead_record import for_replay, with_record
from celery_dlx_retry.wire.header_size import check_properties, room_beside, size_of
from celery_dlx_retry.wire.message import Message

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from kombu.connection import Connection

    from celery_dlx_retry.broker.sync_publisher import Publisher
    from celery_dlx_retry.deadletters.letter import DeadMessage
    from celery_dlx_retry.errors import DLXError
    from celery_dlx_retry.topology.names import Names


# With this ``reply_to`` RabbitMQ sends the reply to a consumer of the same channel; without a consumer it refuses it.
_FAST_REPLY = "amq.rabbitmq.reply-to"


def browse(connection: Connection, queue: str) -> Generator[DeadMessage, None, None]:
    """Yield every dead letter in a queue, oldest first. They stay there; other consumers do not see them meanwhile."""
    with reading(connection, queue) as letters:
        for _, letter in letters:
            yield letter


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


# Each letter is published, confirmed, acknowledged, one after the other: a crash duplicates one letter at most.


def replay(  # noqa: PLR0913 - which, where to, how
    connection: Connection,
    queue: str,
    *,
    names: Names,
    publisher: Publisher,
    wanted: Callable[[DeadMessage], bool],
    destination: Callable[[DeadMessage], str] | None = None,
    change: Callable[[Message], Message] | None = None,
    page: int = PAGE,
    may_continue: Callable[[], bool] = lambda: True,
) -> Generator[tuple[DeadMessage, DLXError | None], None, None]:
    """Move the wanted letters back to their work queues; yield each, with the error if it was not moved.

    ``destination`` names another queue for a letter, or raises a LetterError to keep it. ``may_continue`` is called
    before each move: it may wait, and returns False to end the replay.
    """
    work_queues = WorkQueuePublisher(publisher, names)
    with reading(connection, queue, page=page) as letters:
        for acknowledge, letter in letters:
            if not wanted(letter):
                continue
            if not may_continue():
                return
            try:
                to_queue = destination(letter) if destination else letter.record.queue
                message = change(letter.message) if change else letter.message
                headers = with_written_headers(
                    for_replay(message.headers),
                    kind="replay",
                    task=letter.record.task,
                    task_id=letter.record.task_id,
                    queue=to_queue,
                    attempts=0,
                )
                work_queues.publish(to_queue, message.with_headers(headers))
            except (Unroutable, Unpublishable, Forbidden, LetterError) as problem:
                yield letter, problem  # it stays, and the others have their turn
                continue
            acknowledge()
            yield letter, None


def rewrite(  # noqa: PLR0913 - which, where, how
    connection: Connection,
    queue: str,
    *,
    names: Names,
    publisher: Publisher,
    wanted: Callable[[DeadMessage], bool],
    change: Callable[[Message], Message],
) -> Generator[DeadMessage, None, None]:
    """Put changed ones in the place of the wanted ones, at the end of the same queue; yields each as it was."""
    with reading(connection, queue) as letters:
        for acknowledge, letter in letters:
            if not wanted(letter):
                continue
            changed = change(letter.message)
            # A new message has no x-death: write the record that came from it.
            changed = changed.with_headers(with_record(changed.headers, letter.record))
            publish_to_queue(publisher, names, queue, changed)
            acknowledge()
            yield letter


def discard(
    connection: Connection,
    queue: str,
    *,
    wanted: Callable[[DeadMessage], bool],
    may_continue: Callable[[], bool] = lambda: True,
) -> Generator[DeadMessage, None, None]:
    """Delete the wanted letters; yield each after that. End before a letter if ``may_continue`` returns False."""
    with reading(connection, queue) as letters:
        for acknowledge, letter in letters:
            if not wanted(letter):
                continue
            if not may_continue():
                return
            acknowledge()
            yield letter


def check_message(message: Message) -> None:
    """Raise Unpublishable if AMQP cannot carry a message to a queue, or if py-amqp could not read it there."""
    properties = {**message.kept_properties, "content_type": message.content_type}
    check_properties({**properties, "content_encoding": message.content_encoding})
    if message.properties.get("reply_to") == _FAST_REPLY:
        raise Unpublishable(what="the property reply_to", problem="is RabbitMQ's name for a consumer of the sender")
    headers = dict(message.headers)
    size, room = size_of(headers), room_beside(properties)
    if size > room:
        raise Unpublishable(what="the table of headers", problem=f"has {size} bytes; {room} fit a frame")
    try:
        loads("F", dumps("F", [headers]), 0)
    except (AMQPError, ArithmeticError, OSError, RecursionError, TypeError, ValueError, struct.error) as exc:
        raise Unpublishable(what="a header", problem=f"cannot be encoded ({type(exc).__name__})") from exc


def takes_body(publisher: Publisher, names: Names, size: int) -> bool:
    """Return whether the broker accepts a body of so many bytes; its ``max_message_size`` is the limit."""
    message = Message(body=bytes(size), content_type=None, content_encoding=None, headers={}, properties={})
    try:
        publish_to_queue(publisher, names, PROBE, message)
    except Unroutable:  # the broker read the message, and no queue has this name
        return True
    except Unpublishable:
        return False
    return True
