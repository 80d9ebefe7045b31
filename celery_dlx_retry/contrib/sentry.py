"""Sentry: tags on the error of a dead letter, and a receive latency without the wait. Sentry does the rest.

Call ``install()`` in the module of your app, beside ``sentry_sdk.init()``::

    from celery_dlx_retry.contrib.sentry import install

    install()

It adds no arguments, no body and no text to what Sentry sends, and removes the variables of our stack frames.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

try:
    import sentry_sdk
    from sentry_sdk.scope import add_global_event_processor, global_event_processors
except ModuleNotFoundError as exc:
    raise ModuleNotFoundError(
        "The package sentry_sdk is not installed. Install it with `pip install 'celery-dlx-retry[sentry]'`"
    ) from exc

from celery import current_task, signals

from celery_dlx_retry import events
from celery_dlx_retry.app.clock import due_at
from celery_dlx_retry.policy.reasons import Reason
from celery_dlx_retry.wire.dead_record import last_death
from celery_dlx_retry.wire.header_numbers import ms_since_1970
from celery_dlx_retry.wire.headers import replays_of
from celery_dlx_retry.worker.run_state import is_ours

if TYPE_CHECKING:
    import logging
    from collections.abc import Iterable

    from celery_dlx_retry.events import DeadLettered, Event

#: Sentry cuts the values of tags here.
_LONGEST_TAG = 200
#: The header in which Sentry's integration notes when a message was published, in seconds since 1970.
_ENQUEUED_AT = "sentry-task-enqueued-time"
# Celery and we log a dead letter of the main process here. Sentry makes an event of each error in the log.
_LOGGERS = ("celery.worker.", "celery_dlx_retry.worker.")
# The sender of such a message chose the name and the id of the task.
_WITHOUT_TASK = frozenset((Reason.UNKNOWN_TASK, Reason.INVALID, Reason.UNDECODABLE))

_last = threading.local()


def install() -> None:
    """Let Sentry know of dead letters. You can call it again."""
    events.subscribe(on_event, needs_returns=False)
    if process not in global_event_processors:
        add_global_event_processor(process)
    signals.task_prerun.connect(correct_latency, dispatch_uid="celery_dlx_retry.contrib.sentry")


def on_event(event: Event, /) -> None:
    """Tag the run of a task that dies. The main process has no run: keep the event for the error that it logs."""
    if not isinstance(event, events.DeadLettered):
        return
    if current_task and current_task.request.id == event.task_id:
        sentry_sdk.get_isolation_scope().set_tags(tags_of(event))
    else:
        _last.letter = event


def process(event: Any, hint: dict[str, Any]) -> Any:
    """Change an error before Sentry sends it."""
    for kind in ("exception", "threads"):
        for it in (event.get(kind) or {}).get("values") or ():
            _remove_variables((it.get("stacktrace") or {}).get("frames") or ())
    _tag_logged(event, hint.get("log_record"))
    return event


def _remove_variables(frames: Iterable[dict[str, Any]]) -> None:
    """Remove the local variables of our functions: they hold arguments and messages, and explain no error of a task."""
    for frame in frames:
        if (frame.get("module") or "").startswith("celery_dlx_retry."):
            frame.pop("vars", None)


def _tag_logged(event: Any, record: logging.LogRecord | None) -> None:
    """Tag the error that the main process logs for a dead letter, in the same thread, right after the event of it."""
    letter: DeadLettered | None = getattr(_last, "letter", None)
    if letter is None or record is None or not record.name.startswith(_LOGGERS) or not record.exc_info:
        return
    if getattr(record.exc_info[0], "__name__", None) != letter.error_type:
        return
    _last.letter = None
    event["tags"] = {**(event.get("tags") or {}), **tags_of(letter)}
    if letter.reason not in _WITHOUT_TASK:
        event["transaction"] = letter.task
        event["tags"]["celery_task_id"] = letter.task_id


def tags_of(letter: DeadLettered) -> dict[str, str]:
    """Return what the error of a dead letter is tagged with."""
    facts = {"reason": letter.reason, "group": letter.group, "attempts": letter.attempts, "queue": letter.queue}
    return {f"dlx.{name}": str(value)[:_LONGEST_TAG] for name, value in facts.items()}


def correct_latency(task: Any, **_: Any) -> None:
    """Let the receive latency of a run begin when the message was due, not when it was published to wait."""
    request = task.request
    if not is_ours(request) or _ENQUEUED_AT not in (request.headers or {}):
        return
    headers = request.delivery_info.message.headers
    death = last_death(headers)
    if replays_of(headers) and not request.retries and death is None:
        del request.headers[_ENQUEUED_AT]  # no header has the time of the replay
        return
    with suppress(AttributeError, TypeError, ValueError, OverflowError):  # any sender can write anything there
        starts = [float(request.headers[_ENQUEUED_AT])]
        if request.eta:
            starts.append(due_at(task.app, request.eta).timestamp())
        if death is not None and (left_at := death.get("time")) is not None:  # a parked message has no eta
            starts.append((ms_since_1970(left_at) or 0) / 1000)
        request.headers[_ENQUEUED_AT] = min(max(starts), time.time())
