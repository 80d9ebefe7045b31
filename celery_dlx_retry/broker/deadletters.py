"""Look at dead letters and put them back to work; bodies are bytes here, and never decoded."""

from __future__ import annotations

from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from amqp import spec
from amqp.exceptions import AMQPError, NotFound

from celery_dlx_retry.core.headers import REPLAYS, DeadRecord, Failure, for_replay, history_of, record_of
from celery_dlx_retry.core.message import Message
from celery_dlx_retry.core.reasons import Reason
from celery_dlx_retry.errors import Missing, Unroutable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kombu.connection import Connection

    from celery_dlx_retry.broker.publish import Publisher


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadMessage:
    """A dead letter as it lies in its queue."""

    message: Message
    record: DeadRecord
    history: tuple[Failure, ...]
    replays: int


def browse(connection: Connection, queue: str) -> Iterator[DeadMessage]:
    """Every dead letter in a queue, oldest first. They stay there; others do not see them while we look."""
    with _reading(connection, queue) as letters:
        for _, letter in letters:
            yield letter


def replay(
    connection: Connection, queue: str, *, publisher: Publisher, wanted: Callable[[DeadMessage], bool]
) -> Iterator[tuple[DeadMessage, Unroutable | None]]:
    """Move the wanted ones back to the work queues that they came from; yields each, moved, or why it was not.

    Published, confirmed, acknowledged, one after the other: whoever stops in between has duplicated one at most.
    """
    with _reading(connection, queue) as letters:
        for acknowledge, letter in letters:
            if not wanted(letter):
                continue
            replayed = letter.message.with_headers(for_replay(letter.message.headers))
            try:
                with publisher.producer() as producer:
                    producer.publish_message(replayed, exchange="", routing_key=letter.record.queue)
            except Unroutable as problem:
                yield letter, problem  # its work queue is gone; it stays, and the others have their turn
                continue
            acknowledge()
            yield letter, None


@contextmanager
def _reading(connection: Connection, queue: str) -> Iterator[Iterator[tuple[Callable[[], None], DeadMessage]]]:
    with closing(connection.channel()) as channel:
        channel.auto_decode = False
        try:
            channel.queue_declare(queue, passive=True)
        except NotFound as exc:
            raise Missing(kind="dead-letter queue", name=queue, cure="It is made when a worker starts.") from exc
        try:
            yield _letters(channel, queue)
        except (KeyboardInterrupt, AMQPError, OSError):
            # Perhaps in the middle of an answer: there is no talking on this connection any more, and when it is gone
            # the broker takes back what is not acknowledged.
            connection.collect()
            raise
        finally:
            # Gives it back politely. Closing the channel would too, but counts as a failed delivery on quorum queues
            # (test_thirty_looks_do_not_use_up_the_limit_of_a_queue_that_is_not_ours).
            if channel.connection is not None:
                channel.send_method(spec.Basic.Recover, "b", (True,), wait=spec.Basic.RecoverOk)


def _letters(channel: Any, queue: str) -> Iterator[tuple[Callable[[], None], DeadMessage]]:
    found = channel.basic_get(queue)
    # No more than there were: what is replayed and dies again comes next time. The count comes from the first get, for
    # that of a declare lags behind on a quorum queue that somebody has just looked at.
    more = found.delivery_info["message_count"] if found is not None else 0
    while found is not None:
        yield partial(channel.basic_ack, found.delivery_tag), _dead_message(found)
        found = channel.basic_get(queue) if more > 0 else None
        more -= 1


def _dead_message(found: Any) -> DeadMessage:
    headers = found.properties.get("application_headers") or {}
    replays = headers.get(REPLAYS)
    return DeadMessage(
        message=Message(
            body=found.body,
            content_type=found.properties.get("content_type"),
            content_encoding=found.properties.get("content_encoding"),
            headers=headers,
            properties=found.properties,
        ),
        record=_record(found, headers),
        history=history_of(headers),
        replays=replays if isinstance(replays, int) else 0,
    )


def _record(found: Any, headers: dict[str, Any]) -> DeadRecord:
    record = record_of(headers)
    if ".v1.return." in found.delivery_info["exchange"]:
        # An orphan: it waited, and its work queue was gone. The routing key still names that queue.
        work_queue = found.delivery_info["routing_key"]
        record = replace(record or _foreign(headers), reason=Reason.UNROUTABLE, queue=work_queue)
        return replace(record, family=work_queue)
    return record or _foreign(headers)


def _foreign(headers: dict[str, Any]) -> DeadRecord:
    """Somebody put it there by hand: where it belongs is not known, so it cannot be replayed."""
    return DeadRecord(
        reason=Reason.INVALID,
        task=str(headers.get("task", "")),
        task_id=str(headers.get("id", "")),
        queue="",
        family="",
        worker="",
        attempts=0,
        died_at_ms=0,
    )
