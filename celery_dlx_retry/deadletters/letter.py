"""A dead letter as a value: its message, its record, and all that ``dead show`` prints. A pickle is never opened."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from celery_dlx_retry.deadletters.export import OWN_FIELDS, shown
from celery_dlx_retry.deadletters.fingerprint import Fingerprint, fingerprint
from celery_dlx_retry.errors import Unreadable
from celery_dlx_retry.policy.reasons import Reason
from celery_dlx_retry.topology.names import is_orphan_exchange, work_queue_of
from celery_dlx_retry.wire.dead_record import DeadRecord, last_death, original_of, record_of
from celery_dlx_retry.wire.headers import Failure, history_of, replays_of
from celery_dlx_retry.wire.message import Message
from celery_dlx_retry.wire.task_body import links_of, payload_of
from celery_dlx_retry.wire.unreadable import unreadable_of

if TYPE_CHECKING:
    from collections.abc import Mapping


_ARGUMENTS = ("argsrepr", "kwargsrepr")
# A quorum queue counts deliveries, and reading a queue is one.
_DELIVERY_COUNTS = ("x-delivery-count", "x-acquired-count")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadMessage:
    """A dead letter in its queue."""

    message: Message
    record: DeadRecord
    history: tuple[Failure, ...]
    replays: int
    #: The dead-letter queue that it is in.
    queue: str

    @property
    def fingerprint(self) -> Fingerprint:
        """Return the fingerprint of its failure."""
        return fingerprint(self.record)

    @property
    def unreadable(self) -> str:
        """Name the headers and properties that cannot be decoded; empty if all can."""
        return unreadable_of(self.message.headers)

    def without_content(self) -> DeadMessage:
        """Return the letter without body and headers, which may be long; a list does not show them."""
        empty = Message(body=b"", content_type=None, content_encoding=None, headers={}, properties={})
        return replace(self, message=empty)


def dead_message(message: Message, *, queue: str, exchange: str, routing_key: str) -> DeadMessage:
    """Return the dead letter of a message in this queue, which it reached by this exchange and routing key."""
    headers = message.headers
    return DeadMessage(
        message=message,
        record=_record(headers, exchange=exchange, routing_key=routing_key),
        history=history_of(headers),
        replays=replays_of(headers),
        queue=queue,
    )


def facts_of(letter: DeadMessage) -> dict[str, Any]:
    """Return the fields for ``--json``, without arguments and body."""
    record = asdict(letter.record)
    return {
        **{"family" if name == "dead_letter_key" else name: value for name, value in record.items()},
        "reason": str(letter.record.reason),
        "history": [asdict(failure) for failure in letter.history],
        "replays": letter.replays,
        "dead_letter_queue": letter.queue,
        "group": letter.fingerprint.group,
        "where": letter.fingerprint.where,
    }


def _record(headers: Mapping[str, Any], *, exchange: str, routing_key: str) -> DeadRecord:
    record = record_of(headers)
    work_queue = routing_key if is_orphan_exchange(exchange) else _orphan_of(headers)
    if work_queue:
        # An orphan: when its wait was over, its work queue did not exist.
        return replace(
            record or _foreign(headers), reason=Reason.UNROUTABLE, queue=work_queue, dead_letter_key=work_queue
        )
    return record or _foreign(headers)


def _orphan_of(headers: Mapping[str, Any]) -> str:
    """Return the work queue of an orphan that was exported and imported: x-death still names it."""
    death = last_death(headers)
    if death is None:
        return ""
    keys = death.get("routing-keys")
    key = str(keys[0]) if isinstance(keys, list) and keys else ""
    return work_queue_of(str(death.get("queue", "")), key)


def _foreign(headers: Mapping[str, Any]) -> DeadRecord:
    """Return the record of a message that is not ours. Its work queue is not known."""
    return DeadRecord(
        reason=Reason.INVALID,
        task=str(headers.get("task", "")),
        task_id=str(headers.get("id", "")),
        queue="",
        dead_letter_key="",
        worker="",
        attempts=0,
        died_at_ms=0,
    )


def details_of(letter: DeadMessage, *, with_arguments: bool = False) -> dict[str, Any]:
    """Return the fields of ``dead show --json``."""
    message = letter.message
    facts = {
        **facts_of(letter),
        "content_type": message.content_type,
        "content_encoding": message.content_encoding,
        "body_bytes": len(message.body),
        "edited": original_of(message.headers) is not None,
        "links": _links(letter),
        # Without those that other fields have, and without the representations of the arguments.
        "headers": {
            str(key): shown(value)
            for key, value in message.headers.items()
            if key not in _ARGUMENTS and key not in _DELIVERY_COUNTS and not str(key).startswith("dlx-")
        },
        "properties": {key: shown(it) for key, it in message.properties.items() if key not in OWN_FIELDS},
    }
    return {**facts, "arguments": _arguments(letter)} if with_arguments else facts


def _links(letter: DeadMessage) -> list[str] | None:
    """Return links, chain and chord; None if the body is not JSON."""
    try:
        return list(links_of(letter.message))
    except Unreadable:
        return None


def _arguments(letter: DeadMessage) -> dict[str, Any]:
    try:
        payload = payload_of(letter.message)
    except Unreadable as exc:
        headers = letter.message.headers
        written = {name: str(headers[name]) for name in _ARGUMENTS if headers.get(name) is not None}
        return written | {"not decoded": exc.problem}
    return {"args": payload.args, "kwargs": payload.kwargs}
