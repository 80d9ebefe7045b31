"""Compare the records of a test with what it asserts, and write the sentences for a difference."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from celery.states import SUCCESS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from celery_dlx_retry.testing.records import Record

_ID_LENGTH = 8
_BEGINNINGS = ("sent", "called")
_EVENTS = (*_BEGINNINGS, "retried", "dead", "ended")


class Subject:
    """The messages that an assertion is about: those of a task or its name, the one of a result, or all."""

    def __init__(self, what: Any) -> None:
        self._task_id = str(what.id) if hasattr(what, "id") else None
        self._task = what if isinstance(what, str) else None if self._task_id else getattr(what, "name", None)

    def __str__(self) -> str:
        return self._task or (f"the message {self._task_id}" if self._task_id else "any task")

    def messages(self, records: Iterable[Record]) -> dict[str, list[Record]]:
        """Return the records of each message, by task id, without messages that an earlier test left in a queue."""
        found: dict[str, list[Record]] = {}
        for record in records:
            if self._task in {None, record.task} and self._task_id in {None, record.task_id}:
                found.setdefault(record.task_id, []).append(record)
        return {task_id: each for task_id, each in found.items() if any(record.event in _BEGINNINGS for record in each)}


def are_settled(messages: dict[str, list[Record]]) -> bool:
    """Return whether every message has ended and all its retries are recorded.

    Several processes write records: the end of the last attempt may come before the retry of the attempt before it.
    """
    return all(_is_settled(records) for records in messages.values())


def _is_settled(records: list[Record]) -> bool:
    if any(record.event == "called" for record in records):
        return True  # there is nothing to wait for
    ends = [record.attempt for record in records if record.event in {"dead", "ended"}]
    return bool(ends) and len(_retries(records)) >= max(ends) - 1


def wrong_delays(messages: dict[str, list[Record]], delays: Any) -> str:
    """Return how the retries of these messages differ from these delays; empty if they do not."""
    wanted = [_seconds(delay) for delay in delays] if isinstance(delays, (list, tuple)) else delays
    for task_id, records in messages.items():
        found = [retry.delay_ms / 1000 for retry in _retries(records)]
        if found != wanted:
            return f"Message {task_id[:_ID_LENGTH]} was retried after {_shown(found)}; expected {_shown(wanted)}."
    return ""


def wrong_deaths(messages: dict[str, list[Record]], reason: str | None) -> str:
    """Return which of these messages is not a dead letter with this reason; empty if all are."""
    for task_id, records in messages.items():
        reasons = [record.reason for record in records if record.event == "dead"]
        wanted = "a dead letter" if reason is None else f"a dead letter, reason {reason}"
        if not reasons:
            return f"Message {task_id[:_ID_LENGTH]} is no dead letter; expected {wanted}."
        if reason is not None and reasons[-1] != reason:
            return f"Message {task_id[:_ID_LENGTH]} is a dead letter, reason {reasons[-1]}; expected {wanted}."
    return ""


def wrong_successes(messages: dict[str, list[Record]]) -> str:
    """Return which of these messages did not succeed; empty if all did."""
    for task_id, records in messages.items():
        reasons = [record.reason for record in records if record.event == "dead"]
        ends = sorted((record for record in records if record.event == "ended"), key=_order)
        state = ends[-1].reason if ends else None
        if reasons or state != SUCCESS:
            ended = f"ended as {state}" if state else "has come to no end"
            became = f"is a dead letter, reason {reasons[-1]}" if reasons else ended
            return f"Message {task_id[:_ID_LENGTH]} {became}; expected success."
    return ""


def story(messages: dict[str, list[Record]]) -> str:
    """Return the records of these messages, one line each."""
    records = [record for each in messages.values() for record in sorted(each, key=_order)]
    return "\n".join(f"  {record.task} {record.task_id[:_ID_LENGTH]} {_line(record)}" for record in records)


def _order(record: Record) -> tuple[int, int]:
    return (record.attempt, _EVENTS.index(record.event))


def _line(record: Record) -> str:
    attempt = f"attempt {record.attempt}: {record.error + ' -> ' if record.error else ''}"
    match record.event:
        case "sent" | "called":
            return record.event
        case "retried":
            return f"{attempt}retried after {_shown([record.delay_ms / 1000])}"
        case "dead":
            return f"{attempt}dead letter, reason {record.reason}"
        case "ended":
            return f"{attempt}{record.reason}"


def _retries(records: list[Record]) -> list[Record]:
    return sorted((record for record in records if record.event == "retried"), key=_order)


def _seconds(delay: Any) -> Any:
    return delay.total_seconds() if isinstance(delay, timedelta) else delay


def _shown(delays: Any) -> str:
    if not isinstance(delays, Sequence):
        return str(delays)  # pytest.approx([...])
    return ", ".join(f"{delay:g} s" if isinstance(delay, (int, float)) else f"{delay}" for delay in delays) or "no wait"
