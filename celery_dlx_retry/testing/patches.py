"""Record how tasks end, and take their waits away, while a test runs.

A worker of a test takes the same way as in production: its retries are copies of the received messages. Retries and
dead letters are recorded from our events, ends from Celery's signals, and sent tasks from the producer that Celery
sends with. A receiver of ``before_task_publish`` would see them too, but then no retry is a copy.

A run without a worker is different. It has no broker, so its retries and dead letters are recorded here and not
published.

All of it is per process and not per app: it reaches every app and worker of the process.
"""

from __future__ import annotations

import functools
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from celery import Celery, signals
from celery.contrib.testing.worker import test_worker_started
from celery.exceptions import Retry
from celery.states import FAILURE, IGNORED, REVOKED, SUCCESS

from celery_dlx_retry.app.clock import delay_ms
from celery_dlx_retry.app.context import AppContext
from celery_dlx_retry.app.short_waits import short_waits
from celery_dlx_retry.celery_compat import active_apps
from celery_dlx_retry.events import DeadLettered, RetryScheduled, subscribe, unsubscribe
from celery_dlx_retry.topology.names import WorkQueue
from celery_dlx_retry.wire.headers import first_failed_at_ms, own_headers
from celery_dlx_retry.wire.message import Message
from celery_dlx_retry.worker import task as task_module
from celery_dlx_retry.worker import task_decision as decision
from celery_dlx_retry.worker.dead_letter import text_of
from celery_dlx_retry.worker.outcome import Retry as RetryOutcome
from celery_dlx_retry.worker.patch_detection import is_internal
from celery_dlx_retry.worker.process_budget import pay_in
from celery_dlx_retry.worker.run_state import DeliveryInfo, is_ours, run_state_of
from celery_dlx_retry.worker.task import DLXRetryTask

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from celery_dlx_retry.events import Event
    from celery_dlx_retry.testing.records import RecordFile

# The queue of a run that has none.
EAGER = WorkQueue(name="eager")


@contextmanager
def hooked(file: RecordFile, *, check: Callable[[Celery], None] | None = None) -> Iterator[None]:
    """Record into this file, and let nothing wait, until the block ends.

    ``check`` is called before an app of this process sends, and may raise.
    """
    for app in active_apps():
        app.__dict__.pop("_dlx_own", None)  # budgets and breakers remember what earlier tests did
    hooks = _Hooks(file)
    listeners = {
        signals.task_prerun: hooks.on_prerun,
        signals.task_postrun: hooks.on_postrun,
        signals.task_failure: hooks.on_failure,
        signals.task_revoked: hooks.on_revoked,
        signals.worker_ready: lambda sender, **_: _stop_soon(sender),
        test_worker_started: lambda consumer, **_: _stop_soon(consumer),
    }
    with ExitStack() as stack:
        stack.enter_context(short_waits())
        subscribe(hooks.on_event)
        stack.callback(unsubscribe, hooks.on_event)
        for owner, name, wrap in (
            (Celery, "producer_or_acquire", functools.partial(hooks.watched_producer, check)),
            (DLXRetryTask, "retry", hooks.retry_without_worker),
            (AppContext, "publish_dead", hooks.publish_dead),
        ):
            stack.enter_context(patch.object(owner, name, wrap(getattr(owner, name))))
        stack.enter_context(patch.object(decision, "first_failed_at_ms", hooks.first_failed_at_ms))
        stack.enter_context(patch.object(task_module, "make", _now))
        for signal, listener in listeners.items():
            signal.connect(listener, weak=False)
            stack.callback(signal.disconnect, listener)
        yield


class _Hooks:
    def __init__(self, file: RecordFile) -> None:
        self._file = file

    def on_event(self, event: Event) -> None:
        """Record what a worker has published, when the broker has confirmed it."""
        if isinstance(event, RetryScheduled):
            facts = {"attempt": event.retry, "delay_ms": event.delay_ms, "error": event.error}
            self._file.add("retried", event.task, event.task_id, **facts)
        elif isinstance(event, DeadLettered):
            error = ": ".join(filter(None, [event.error_type, event.error]))
            facts = {"attempt": event.attempts, "reason": str(event.reason), "error": error}
            self._file.add("dead", event.task, event.task_id, **facts)

    def retry_without_worker(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Around ``DLXRetryTask.retry``: record a retry that Celery runs in the same process, or on another broker."""

        @functools.wraps(original)
        def retry(task: Any, *args: Any, **options: Any) -> Any:
            try:
                asked = original(task, *args, **options)
            except Retry as exc:
                self._note_retry(task, exc)
                raise
            self._note_retry(task, asked)  # retry(throw=False)
            return asked

        return retry

    def _note_retry(self, task: Any, asked: Retry) -> None:
        request, when, error = task.request, asked.when, asked.exc
        if request.called_directly or (is_ours(request) and not request.is_eager):
            return
        if is_ours(request):
            run = run_state_of(request)
            run.outcome = RetryOutcome(is_published=True)  # Celery runs an eager retry by apply()
            error = run.error
        countdown, eta = (when, None) if isinstance(when, (int, float)) else (None, when)
        waits_ms = delay_ms(task.app, countdown=countdown, eta=eta)
        text = text_of(error) if isinstance(error, BaseException) else ""
        self._file.add("retried", task.name, request.id, attempt=request.retries + 1, delay_ms=waits_ms, error=text)

    def publish_dead(self, original: Callable[..., None]) -> Callable[..., None]:
        """Around ``AppContext.publish_dead``: a run without a worker has no queue to publish to."""

        @functools.wraps(original)
        def publish_dead(context: AppContext, message: Message, queue: WorkQueue, *args: Any, **how: Any) -> None:
            if queue is not EAGER:
                original(context, message, queue, *args, **how)

        return publish_dead

    def first_failed_at_ms(self, headers: Any, *, now_ms: int) -> int:
        """In place of the one that deadlines count from: the waits that were left out count as passed."""
        waits = (record.delay_ms for record in self._file.read() if record.task_id == headers.get("id"))
        return first_failed_at_ms(headers, now_ms=now_ms) - sum(waits)

    def watched_producer(
        self, check: Callable[[Celery], None] | None, original: Callable[..., Any]
    ) -> Callable[..., Any]:
        """Around ``Celery.producer_or_acquire``: check the broker, and record what the producer sends."""

        @functools.wraps(original)
        @contextmanager
        def producer_or_acquire(app: Celery, producer: Any = None) -> Iterator[Any]:
            if check is not None and producer is None:
                check(app)
            with original(app, producer) as found:
                # A group passes the producer that it got on to each of its tasks.
                yield found if isinstance(found, _WatchedProducer) else _WatchedProducer(found, self.on_publish)

        return producer_or_acquire

    def on_publish(self, headers: Any) -> None:
        """Record a task that is about to be sent; not a retry, and not an event."""
        if headers and headers.get("retries") == 0 and "task" in headers:  # protocol 1 has them elsewhere
            self._file.add("sent", headers["task"], headers["id"])

    def on_prerun(self, task: Any, **_: Any) -> None:
        """Let an eager run decide as a run in a worker does: give it a message, although it comes from no queue."""
        request = task.request
        if not request.is_eager or not isinstance(task, DLXRetryTask) or is_internal(task.name):
            return
        message = Message(
            body=b"",
            content_type="application/json",
            content_encoding="utf-8",
            headers={
                **own_headers(request.headers or {}),
                "task": task.name,
                "id": request.id,
                "retries": request.retries,
            },
            properties={},
        )
        if not request.retries:
            self._file.add("called", task.name, request.id)
        request.delivery_info = DeliveryInfo(
            request.delivery_info,
            queue=EAGER,
            message=message,
            worker=EAGER.name,
            is_bound=False,
            forwards=False,
            is_watched=True,
        )
        if not request.retries:
            pay_in(task)

    def on_postrun(self, task: Any, task_id: str, state: str, **_: Any) -> None:
        if state in {SUCCESS, IGNORED}:
            self._note_end(task.name, task_id, task.request.retries, state)

    def on_failure(self, sender: Any, task_id: str, exception: Any, **_: Any) -> None:
        """Celery sends it in the pool process, or in the main process if the pool process is gone."""
        self._note_end(sender.name, task_id, sender.request.retries, FAILURE, exception)

    def on_revoked(self, request: Any, **_: Any) -> None:
        self._note_end(request.task_name, request.id, 0, REVOKED)

    def _note_end(self, task: str, task_id: str, retries: int | None, state: str, error: Any = None) -> None:
        text = text_of(error) if isinstance(error, BaseException) else ""
        self._file.add("ended", task, task_id, attempt=(retries or 0) + 1, reason=state, error=text)


class _WatchedProducer:
    """A producer that shows the headers of each message before it publishes."""

    def __init__(self, producer: Any, on_publish: Callable[[Any], None]) -> None:
        self._producer = producer
        self._on_publish = on_publish

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)

    def publish(self, *args: Any, **options: Any) -> Any:
        self._on_publish(options.get("headers"))
        return self._producer.publish(*args, **options)


def _stop_soon(consumer: Any) -> None:
    """Wake the worker often: Celery checks only at its next event whether to stop, up to ten seconds later."""
    (consumer.hub or consumer.timer).call_repeatedly(0.1, int)


def _now(_task: Any, apply_async: Callable[..., Any], args: Any, kwargs: Any, options: dict[str, Any]) -> Any:
    """In place of a countdown: send now."""
    return apply_async(args, kwargs, **{key: it for key, it in options.items() if key not in {"countdown", "eta"}})
