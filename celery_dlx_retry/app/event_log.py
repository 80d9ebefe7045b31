"""The first subscriber: one log line for each event, with the same facts as fields of the log record."""

from __future__ import annotations

from dataclasses import fields
from logging import DEBUG, ERROR, INFO, WARNING
from typing import TYPE_CHECKING, Any

from celery.exceptions import SoftTimeLimitExceeded
from celery.utils.log import get_logger

from celery_dlx_retry.errors import DLXError
from celery_dlx_retry.events import (
    BreakerChanged,
    BudgetChanged,
    CountdownScheduled,
    DeadLettered,
    Edited,
    GivenBack,
    Imported,
    Parked,
    Purged,
    Recovered,
    Replayed,
    RetryScheduled,
    Returned,
    subscribe,
)
from celery_dlx_retry.values.log_lines import escaped, log_fields

if TYPE_CHECKING:
    from celery_dlx_retry.events import Event

logger = escaped(get_logger("celery_dlx_retry.events"))

#: Level, sentence, and the attributes that it names.
_LINES: dict[type, tuple[int, str, tuple[str, ...]]] = {
    RetryScheduled: (
        INFO,
        "retry scheduled task=%s id=%s retry=%d delay_ms=%d queue=%s",
        ("task", "task_id", "retry", "delay_ms", "queue"),
    ),
    Returned: (
        DEBUG,
        "returned task=%s id=%s retry=%d late_ms=%d queue=%s",
        ("task", "task_id", "retry", "late_ms", "queue"),
    ),
    DeadLettered: (
        WARNING,
        "dead letter task=%s id=%s reason=%s attempts=%d queue=%s",
        ("task", "task_id", "reason", "attempts", "queue"),
    ),
    Recovered: (
        DEBUG,
        "recovered task=%s id=%s attempts=%d queue=%s",
        ("task", "task_id", "attempts", "queue"),
    ),
    Parked: (
        INFO,
        "parked task=%s id=%s delay_ms=%d queue=%s",
        ("task", "task_id", "delay_ms", "queue"),
    ),
    GivenBack: (
        ERROR,
        "not handed over task=%s id=%s: %s",
        ("task", "task_id", "problem"),
    ),
    Replayed: (
        DEBUG,
        "replayed task=%s id=%s queue=%s dead_letter_queue=%s",
        ("task", "task_id", "queue", "dead_letter_queue"),
    ),
    BudgetChanged: (DEBUG, "budget changed task=%s remaining=%.1f", ("task", "remaining")),
    Purged: (DEBUG, "purged dead_letter_queue=%s count=%d", ("dead_letter_queue", "count")),
    Edited: (
        DEBUG,
        "edited task=%s id=%s dead_letter_queue=%s",
        ("task", "task_id", "dead_letter_queue"),
    ),
    Imported: (
        DEBUG,
        "imported task=%s id=%s dead_letter_queue=%s",
        ("task", "task_id", "dead_letter_queue"),
    ),
}
_COUNTDOWN = ("task", "task_id", "delay_ms", "queue")
_BREAKERS: dict[str, tuple[int, str, tuple[str, ...]]] = {
    "open": (WARNING, "breaker open task=%s probe_every_ms=%d", ("task", "interval_ms")),
    "half open": (INFO, "breaker half open task=%s per_interval=%d", ("task", "per_interval")),
    "closed": (INFO, "breaker closed task=%s", ("task",)),
}
# The text of an error may quote arguments.
_NOT_LOGGED = frozenset(("error", "problem"))
# Another problem is an error in this package or in a library: its traceback is logged, too.
_FORESEEN = (DLXError, SoftTimeLimitExceeded)


def log_event(event: Event) -> None:
    """Write the line of an event, if its level is enabled."""
    level, sentence, names = _line_of(event)
    if not logger.isEnabledFor(level):
        return
    problem = event.problem if isinstance(event, GivenBack) else None
    values = [getattr(event, name) for name in names]
    logger.log(
        level, sentence, *values, exc_info=None if isinstance(problem, _FORESEEN) else problem, extra=extra_of(event)
    )


def extra_of(event: Event) -> dict[str, Any]:
    """Return the facts of an event as fields of a log record: ``dlx_event``, ``dlx_task`` and so on."""
    names = (*(it.name for it in fields(event)), "cause")
    facts = {name: getattr(event, name) for name in names if name not in _NOT_LOGGED and hasattr(event, name)}
    return log_fields(type(event).__name__, **facts)


def _line_of(event: Event) -> tuple[int, str, tuple[str, ...]]:
    if isinstance(event, BreakerChanged):
        return _BREAKERS[event.state]
    if isinstance(event, CountdownScheduled):
        # A worker says that it sent a message on. A process that sends many tasks does not want a line for each.
        if event.is_sent_on:
            return INFO, "sent on task=%s id=%s delay_ms=%d queue=%s", _COUNTDOWN
        return DEBUG, "countdown scheduled task=%s id=%s delay_ms=%d queue=%s", _COUNTDOWN
    return _LINES[type(event)]


subscribe(log_event, needs_returns=False)
