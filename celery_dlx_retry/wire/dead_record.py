"""Read and write the record of a dead letter in its headers: why and how the message died."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any

from celery_dlx_retry.policy.reasons import Reason
from celery_dlx_retry.policy.rule_retries import RULE_RETRIES
from celery_dlx_retry.values.durations import is_count
from celery_dlx_retry.values.queue_names import NAME_BYTES
from celery_dlx_retry.wire.header_size import HEADERS_BYTES, size_of
from celery_dlx_retry.wire.headers import (
    BROKERS,
    COPIES,
    CRASHES,
    EXCHANGE,
    FIRST_FAILED_AT,
    ORIGINAL,
    PARKED_AT,
    REPLAYS,
    ROUTING_KEY,
    bounded_count,
    cut,
    is_time_ms,
    ms_since_1970,
    replays_of,
    retries_of,
    without_broker_headers,
)
from celery_dlx_retry.wire.unreadable import UNREADABLE

_RECORD = "dlx-dead-"
#: Headers of the broker, and of an earlier death.
_NOT_KEPT = (*BROKERS, _RECORD)
# Names on the wire do not change with ours.
_WIRE_NAMES = {"dead_letter_key": "family"}
_DEATHS = "x-death"
_ERROR_BYTES = 2_000
_LEAST_ERROR_BYTES = 100
_TRACEBACK_BYTES = 30_000
_NUMBERS = ("attempts", "died_at_ms")
# RabbitMQ's reasons and ours. For any other the reason is "rejected".
_BROKER_REASONS = {
    "delivery_limit": Reason.CRASH_LOOP,
    "maxlen": Reason.OVERFLOW,
    "expired": Reason.EXPIRED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadRecord:
    """Why and how a message died."""

    reason: Reason
    task: str
    task_id: str
    queue: str
    dead_letter_key: str
    worker: str
    attempts: int
    died_at_ms: int
    error_type: str = ""
    error: str = ""
    traceback: str = ""


def record_key(name: str) -> str:
    """Return the name of the header that holds this field of the record."""
    return _RECORD + _WIRE_NAMES.get(name, name).replace("_", "-")


_KEYS = {it.name: record_key(it.name) for it in fields(DeadRecord)}
_TEXTS = tuple(name for name in _KEYS if name not in {*_NUMBERS, "error", "traceback"})


def with_record(headers: Mapping[str, Any], record: DeadRecord) -> dict[str, Any]:
    """Return the headers of a dead letter: those of the message, and the record, cut so that all fit one frame."""
    letter = {
        key: value
        for key, value in headers.items()
        if key not in COPIES and not (isinstance(key, str) and key.startswith(_NOT_KEPT))
    }
    if UNREADABLE in letter and _is_death_unreadable(letter):
        # It belongs to an earlier death, as x-death does. From here on the record is ours.
        letter[UNREADABLE] = {name: raw for name, raw in letter[UNREADABLE].items() if name != _DEATHS}
    for name in _TEXTS:
        # The text of an enum's member, without a call of the enum.
        text = str.__str__(record.reason) if name == "reason" else str(getattr(record, name))
        is_short = len(text) <= NAME_BYTES and text.isascii()
        letter[_KEYS[name]] = text if is_short else cut(text, NAME_BYTES)
    for name in _NUMBERS:
        letter[_KEYS[name]] = getattr(record, name)
    letter |= {_KEYS["error"]: "", _KEYS["traceback"]: ""}
    room = HEADERS_BYTES - size_of(letter)
    error = letter[_KEYS["error"]] = cut(record.error, max(_LEAST_ERROR_BYTES, min(_ERROR_BYTES, room)))
    room -= len(error.encode("utf-8", "surrogatepass"))
    letter[_KEYS["traceback"]] = cut(record.traceback, max(0, min(_TRACEBACK_BYTES, room)))
    return letter


def without_record(headers: Mapping[str, Any]) -> dict[str, Any]:
    """Return the headers without the record."""
    # Called for every dead letter, so it does not call starts() for each header.
    return {key: value for key, value in headers.items() if not (isinstance(key, str) and key.startswith(_RECORD))}


def original_of(headers: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return what ``dead edit`` kept of a letter; None if it was never edited.

    The worker removes the header when it makes a dead letter. If the broker made it, the sender may have written it.
    """
    original = headers.get(ORIGINAL)
    is_senders = last_death(headers) is not None or _is_death_unreadable(headers)
    return original if isinstance(original, Mapping) and not is_senders else None


def record_of(headers: Mapping[str, Any]) -> DeadRecord | None:
    """Return the record of a dead letter; None if it has none.

    If the broker dead-lettered the message, x-death is the record. The worker removes x-death from its own dead
    letters, so any other record beside it is the sender's
    (test_a_forged_record_does_not_choose_the_queue_of_a_replay).
    """
    if (by_broker := _broker_record(headers)) is not None:
        return by_broker
    if _is_death_unreadable(headers):
        return None
    values = {name: headers[key] for name, key in _KEYS.items() if key in headers}
    if values.keys() >= {"reason", "queue"}:  # a full frame has room for these two only
        values = {**_celery_facts(headers, queue=values["queue"]), **values}
    try:
        values["reason"] = Reason(values["reason"])
        if is_count(values["attempts"]):
            values["attempts"] = bounded_count(values["attempts"])
        record = DeadRecord(**values)
    except (KeyError, TypeError, ValueError):
        return None
    return record if _is_sound(record) else None


def for_replay(headers: Mapping[str, Any]) -> dict[str, Any]:
    """Return the headers of a replayed message: like a new one, with its history and the count of replays."""
    kept = without_record(without_broker_headers(headers))
    # The deadline and all counts begin again, and a replay goes to the work queue by its name. With unreadable headers
    # a worker would make a dead letter of it again.
    for name in (FIRST_FAILED_AT, RULE_RETRIES, CRASHES, PARKED_AT, EXCHANGE, ROUTING_KEY, ORIGINAL, UNREADABLE):
        kept.pop(name, None)
    for late in ("expires", "eta"):  # the operator wants it to run now
        if late in kept:
            kept[late] = None
    return {**kept, "retries": 0, REPLAYS: bounded_count(replays_of(headers) + 1)}


def last_death(headers: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the newest entry of x-death, which the broker writes when it dead-letters a message."""
    deaths = headers.get(_DEATHS)
    return deaths[0] if isinstance(deaths, list) and deaths and isinstance(deaths[0], Mapping) else None


def _is_death_unreadable(headers: Mapping[str, Any]) -> bool:
    """Return whether the broker may have dead-lettered it: RabbitMQ 3 adds its entry to an x-death of the sender."""
    unreadable = headers.get(UNREADABLE)
    return isinstance(unreadable, Mapping) and _DEATHS in unreadable


def _broker_record(headers: Mapping[str, Any]) -> DeadRecord | None:
    death = last_death(headers)
    if death is None:
        return None
    queue = str(death.get("queue", ""))
    at = death.get("time")
    facts = _celery_facts(headers, queue=queue)
    facts["died_at_ms"] = (ms_since_1970(at) or 0) if isinstance(at, datetime) else 0
    return DeadRecord(reason=_BROKER_REASONS.get(str(death.get("reason")), Reason.REJECTED), **facts)


def _celery_facts(headers: Mapping[str, Any], *, queue: Any) -> dict[str, Any]:
    """Return the fields of a record that Celery's own headers have."""
    return {
        "task": str(headers.get("task", "")),
        "task_id": str(headers.get("id", "")),
        "queue": queue,
        "dead_letter_key": queue,
        "worker": "",
        "attempts": retries_of(headers) + 1,
        "died_at_ms": 0,
    }


def _is_sound(record: DeadRecord) -> bool:
    numbers = is_count(record.attempts) and is_time_ms(record.died_at_ms)
    return numbers and all(isinstance(getattr(record, name), str) for name in _KEYS if name not in _NUMBERS)
