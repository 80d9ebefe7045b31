"""Move dead letters: back to work, changed, in from a file, or away for good.

Published, confirmed, acknowledged, one after the other: whoever stops in between has doubled one at most.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery_dlx_retry.broker.deadletters import reading
from celery_dlx_retry.broker.reader import PAGE
from celery_dlx_retry.core.headers import for_replay, with_record
from celery_dlx_retry.errors import LetterError, Unroutable

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from kombu.connection import Connection

    from celery_dlx_retry.broker.publish import Publisher
    from celery_dlx_retry.core.deadletter import DeadMessage
    from celery_dlx_retry.core.message import Message
    from celery_dlx_retry.errors import DLXError


def replay(  # noqa: PLR0913 - which, where to, how
    connection: Connection,
    queue: str,
    *,
    publisher: Publisher,
    wanted: Callable[[DeadMessage], bool],
    destination: Callable[[DeadMessage], str] | None = None,
    change: Callable[[Message], Message] | None = None,
    page: int = PAGE,
) -> Generator[tuple[DeadMessage, DLXError | None], None, None]:
    """Move the wanted ones back to the work queues that they came from; yields each, moved, or why it was not.

    ``destination`` names another queue for a letter, or raises a LetterError to keep it.
    """
    with reading(connection, queue, page=page) as letters:
        for acknowledge, letter in letters:
            if not wanted(letter):
                continue
            try:
                to_queue = destination(letter) if destination else letter.record.queue
                message = change(letter.message) if change else letter.message
                replayed = message.with_headers(for_replay(message.headers))
                with publisher.producer() as producer:
                    producer.publish_message(replayed, exchange="", routing_key=to_queue)
            except (Unroutable, LetterError) as problem:
                yield letter, problem  # it stays, and the others have their turn
                continue
            acknowledge()
            yield letter, None


def rewrite(
    connection: Connection,
    queue: str,
    *,
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
            # The record is written out: what the broker alone knew of its death is not told of a new message.
            changed = changed.with_headers(with_record(changed.headers, letter.record))
            with publisher.producer() as producer:
                producer.publish_message(changed, exchange="", routing_key=queue)
            acknowledge()
            yield letter


def discard(
    connection: Connection, queue: str, *, wanted: Callable[[DeadMessage], bool]
) -> Generator[DeadMessage, None, None]:
    """Take the wanted ones away for good; yields each when it is gone."""
    with reading(connection, queue) as letters:
        for acknowledge, letter in letters:
            if wanted(letter):
                acknowledge()
                yield letter


def put(publisher: Publisher, queue: str, message: Message) -> None:
    """Lay a dead letter into a dead-letter queue as it was in another; raises PublishError if it is not there then."""
    with publisher.producer() as producer:
        producer.publish_message(message, exchange="", routing_key=queue, as_found=True)
