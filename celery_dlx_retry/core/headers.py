"""The wire format: the history of attempts and the dead-letter record, to and from message headers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from typing import Any

from celery_dlx_retry.core.reasons import Reason

#: All attempts so far as JSON: ``[[attempt, at_ms, error, delay_ms, worker], …]``, the first one and the newest.
HISTORY = "dlx-history"
#: When the first attempt failed, in ms since 1970; a policy's deadline counts from here.
FIRST_FAILED_AT = "dlx-first-failed-at"
#: How often the message was taken out of a dead-letter queue and tried again.
REPLAYS = "dlx-replays"

_RECORD = "dlx-dead-"
_HISTORY_LENGTH = 20
_ERROR_BYTES = 2_000
_ENTRY_ERROR_BYTES = 200
# Headers travel in one frame of at most 131,072 bytes; the rest is left to properties and frame overhead.
_FRAME_BYTES = 120_000
_TRACEBACK_BYTES = 30_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One failed attempt: when, of what, where, and how long its retry waited (None: it has none)."""

    attempt: int
    at_ms: int
    error: str
    delay_ms: int | None
    worker: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadRecord:
    """Why and how a message died."""

    reason: Reason
    task: str
    task_id: str
    queue: str
    family: str
    worker: str
    attempts: int
    died_at_ms: int
    error_type: str = ""
    error: str = ""
    traceback: str = ""


def describe(error: BaseException) -> str:
    """``Type: text`` in one line that any header can hold, whatever the error's ``__str__`` does."""
    name = type(error).__name__
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - user code; the dead letter matters more than its text
        text = "<unprintable>"
    return f"{name}: {text}" if text else name


def history_of(headers: Mapping[str, Any]) -> tuple[Failure, ...]:
    """What the header tells; nothing if it is missing, foreign or forged."""
    try:
        rows = json.loads(headers.get(HISTORY, "[]"))
        return tuple(
            Failure(
                attempt=int(attempt),
                at_ms=int(at_ms),
                error=cut(str(error), _ENTRY_ERROR_BYTES),
                delay_ms=None if delay_ms is None else int(delay_ms),
                worker=cut(str(worker), _ENTRY_ERROR_BYTES),
            )
            for attempt, at_ms, error, delay_ms, worker in rows[-_HISTORY_LENGTH:]
        )
    except (TypeError, ValueError, RecursionError, OverflowError):
        return ()


def first_failed_at_ms(headers: Mapping[str, Any], *, now_ms: int) -> int:
    """When the first attempt failed: now, if this is the first, or if the header makes no sense."""
    value = headers.get(FIRST_FAILED_AT)
    if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= now_ms:
        return value
    return now_ms


def with_failure(headers: Mapping[str, Any], failure: Failure) -> dict[str, Any]:
    """The headers after one more failed attempt, without what the broker wrote into them."""
    history = [*history_of(headers), failure]
    if len(history) > _HISTORY_LENGTH:
        del history[1 : len(history) - _HISTORY_LENGTH + 1]
    rows = [
        [entry.attempt, entry.at_ms, cut(entry.error, _ENTRY_ERROR_BYTES), entry.delay_ms, entry.worker]
        for entry in history
    ]
    return {
        **without_broker_headers(headers),
        HISTORY: json.dumps(rows, separators=(",", ":"), ensure_ascii=True),
        FIRST_FAILED_AT: first_failed_at_ms(headers, now_ms=failure.at_ms),
    }


def without_broker_headers(headers: Mapping[str, Any]) -> dict[str, Any]:
    """Drop every ``x-*`` header that RabbitMQ wrote.

    A copied x-death makes RabbitMQ 3 see a cycle and drop the message; a copied x-delivery-count lies.
    """
    return {key: value for key, value in headers.items() if not _is_broker_header(key)}


def with_record(headers: Mapping[str, Any], record: DeadRecord) -> dict[str, Any]:
    """The headers of a dead letter: those of the message, and the record, cut so that all of it fits one frame."""
    ours: dict[str, Any] = {
        **asdict(record),
        "reason": str(record.reason),
        "error_type": cut(record.error_type, _ENTRY_ERROR_BYTES),
        "error": cut(record.error, _ERROR_BYTES),
    }
    kept = without_record(without_broker_headers(headers))
    room = _FRAME_BYTES - _size(kept) - _size({**ours, "traceback": ""})
    ours["traceback"] = cut(record.traceback, max(0, min(_TRACEBACK_BYTES, room)))
    return {**kept, **{_RECORD + key.replace("_", "-"): value for key, value in ours.items()}}


def without_record(headers: Mapping[str, Any]) -> dict[str, Any]:
    """Take the record off again."""
    return {key: value for key, value in headers.items() if not key.startswith(_RECORD)}


def record_of(headers: Mapping[str, Any]) -> DeadRecord | None:
    """The record, or what the broker's own x-death tells of a message that it dead-lettered itself."""
    found = {
        field.name: headers.get(_RECORD + field.name.replace("_", "-"))
        for field in fields(DeadRecord)
        if _RECORD + field.name.replace("_", "-") in headers
    }
    try:
        found["reason"] = Reason(found["reason"])
        return DeadRecord(**found)  # type: ignore[arg-type]
    except (KeyError, TypeError, ValueError):
        return _broker_record(headers)


def for_replay(headers: Mapping[str, Any]) -> dict[str, Any]:
    """The headers of a dead letter on its way back to work: as if new, but remembering."""
    replays = headers.get(REPLAYS)
    kept = without_record(without_broker_headers(headers))
    kept.pop(FIRST_FAILED_AT, None)  # the deadline counts anew
    return {**kept, "retries": 0, REPLAYS: replays + 1 if isinstance(replays, int) else 1}


def cut(text: str, size: int) -> str:
    """At most ``size`` bytes of UTF-8, the middle left out; anything that is not valid UTF-8 replaced."""
    data = text.encode("utf-8", "replace")
    if len(data) <= size:
        return data.decode()
    mark = b"\n[...]\n"
    if size <= len(mark) * 2:
        return data[:size].decode("utf-8", "ignore")
    head = (size - len(mark)) // 3
    tail = size - len(mark) - head
    return (data[:head].decode("utf-8", "ignore").encode() + mark).decode() + data[-tail:].decode("utf-8", "ignore")


# What RabbitMQ calls a death -> what we call it; "rejected" is the default, and the least that we know.
_BROKER_REASONS = {
    "delivery_limit": Reason.CRASH_LOOP,
    "maxlen": Reason.OVERFLOW,
    "expired": Reason.EXPIRED,
}


def _broker_record(headers: Mapping[str, Any]) -> DeadRecord | None:
    deaths = headers.get("x-death")
    if not isinstance(deaths, list) or not deaths or not isinstance(deaths[0], Mapping):
        return None
    death = deaths[0]
    queue = str(death.get("queue", ""))
    at = death.get("time")
    retries = headers.get("retries")
    return DeadRecord(
        reason=_BROKER_REASONS.get(str(death.get("reason")), Reason.REJECTED),
        task=str(headers.get("task", "")),
        task_id=str(headers.get("id", "")),
        queue=queue,
        family=queue,
        worker="",
        attempts=retries + 1 if isinstance(retries, int) else 1,
        died_at_ms=int(at.timestamp() * 1000) if isinstance(at, datetime) else 0,
    )


def _is_broker_header(key: str) -> bool:
    return key.startswith(("x-death", "x-first-death-", "x-last-death-", "x-delivery-count", "x-acquired-count"))


def _size(headers: Mapping[str, Any]) -> int:
    """About how many bytes these take on the wire; never fewer."""
    return sum(len(repr(key)) + len(repr(value).encode("utf-8", "replace")) + 8 for key, value in headers.items())
