"""Where a test listens and takes the waits away: a retry is asked for, a message is buried, a way is chosen.

Nothing in the package knows of it. The hooks are on classes and not on one app: they also reach the apps and workers
that were there before, and those that come later.
"""

from __future__ import annotations

import functools
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from celery import signals
from celery._state import _get_active_apps
from celery.contrib.testing.worker import test_worker_started
from celery.exceptions import Retry
from celery.states import FAILURE, IGNORED, REVOKED, SUCCESS

from celery_dlx_retry.app.clock import delay_ms
from celery_dlx_retry.app.context import AppContext
from celery_dlx_retry.app.known_lanes import Lanes
from celery_dlx_retry.testing.records import Record
from celery_dlx_retry.topology.lanes import lane_ms
from celery_dlx_retry.topology.names import WorkQueue
from celery_dlx_retry.topology.wait_route import WaitKind
from celery_dlx_retry.wire.headers import first_failed_at_ms, own_headers
from celery_dlx_retry.wire.message import Message
from celery_dlx_retry.worker import task as task_module
from celery_dlx_retry.worker import task_decision as decision
from celery_dlx_retry.worker.dead_letter import text_of
from celery_dlx_retry.worker.patch_detection import is_internal
from celery_dlx_retry.worker.process_budget import pay_in
from celery_dlx_retry.worker.request import DLXRequest
from celery_dlx_retry.worker.run_state import DeliveryInfo, is_ours, run_state_of
from celery_dlx_retry.worker.task import DLXRetryTask

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from celery_dlx_retry.testing.records import RecordFile
    from celery_dlx_retry.topology.wait_route import WaitRoute
    from celery_dlx_retry.wire.dead_record import DeadRecord

# The queue of what runs without one.
EAGER = WorkQueue(name="eager")


@contextmanager
def hooked(file: RecordFile) -> Iterator[None]:
    """Record into this file, and let nothing wait, as long as the block lasts."""
    for app in _get_active_apps():
        app.__dict__.pop("_dlx_own", None)  # budgets and breakers remember what earlier tests did
    hooks = _Hooks(file)
    listeners = {
        signals.before_task_publish: hooks.on_publish,
        signals.task_prerun: hooks.on_prerun,
        signals.task_postrun: hooks.on_postrun,
        signals.task_failure: hooks.on_failure,
        signals.task_revoked: hooks.on_revoked,
        signals.worker_ready: lambda sender, **_: _stop_soon(sender),
        test_worker_started: lambda consumer, **_: _stop_soon(consumer),
    }
    with ExitStack() as stack:
        for owner, name, wrap in (
            (DLXRetryTask, "retry", hooks.retry),
            (DLXRequest, "_retry", hooks.retry_in_main),
            (AppContext, "publish_dead", hooks.publish_dead),
            (AppContext, "wait_route", hooks.wait_route),
        ):
            stack.enter_context(patch.object(owner, name, wrap(getattr(owner, name))))
        stack.enter_context(patch.object(Lanes, "plain", lambda *_: None))  # so that each asks way_for
        stack.enter_context(patch.object(decision, "first_failed_at_ms", hooks.first_failed_at_ms))
        stack.enter_context(patch.object(task_module, "make", _now))
        for signal, listener in listeners.items():
            signal.connect(listener, weak=False)
            stack.callback(signal.disconnect, listener)
        yield


class _Hooks:
    def __init__(self, file: RecordFile) -> None:
        self._file = file

    def retry(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Around ``DLXRetryTask.retry``."""

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
        if request.called_directly:
            return
        if is_ours(request):
            attempt = run_state_of(request)
            attempt.is_handed_over = True  # an eager one is, too: Celery's apply() runs it again
            error = attempt.error
        countdown, eta = (when, None) if isinstance(when, (int, float)) else (None, when)
        self._file.add(
            Record(
                event="retried",
                task=task.name,
                task_id=request.id,
                attempt=request.retries + 1,
                delay_ms=delay_ms(task.app, countdown=countdown, eta=eta),
                error=text_of(error) if isinstance(error, BaseException) else "",
            )
        )

    def retry_in_main(self, original: Callable[..., None]) -> Callable[..., None]:
        """Around ``DLXRequest._retry``, for what the pool's process did not live to say."""

        @functools.wraps(original)
        def retry(request: Any, error: BaseException, delay_ms: int, exc_info: Any) -> None:
            original(request, error, delay_ms, exc_info)
            attempt = request._context.retries + 1  # noqa: SLF001 - it is ours
            self._file.add(
                Record(
                    event="retried",
                    task=request.name,
                    task_id=request.id,
                    attempt=attempt,
                    delay_ms=delay_ms,
                    error=text_of(error),
                )
            )

        return retry

    def publish_dead(self, original: Callable[..., None]) -> Callable[..., None]:
        """Around ``Runtime.publish_dead``."""

        @functools.wraps(original)
        def publish_dead(
            context: AppContext, message: Message, queue: WorkQueue, record: DeadRecord, **how: Any
        ) -> None:
            if queue is not EAGER:
                original(context, message, queue, record, **how)
            self._file.add(
                Record(
                    event="dead",
                    task=record.task,
                    task_id=record.task_id,
                    attempt=record.attempts,
                    reason=str(record.reason),
                    error=": ".join(filter(None, [record.error_type, record.error])),
                )
            )

        return publish_dead

    def wait_route(self, original: Callable[..., WaitRoute]) -> Callable[..., WaitRoute]:
        """Around ``Runtime.way_for``: retries take the shortest lane, and their headers tell the true length."""

        @functools.wraps(original)
        def wait_route(
            context: AppContext, queue: WorkQueue, delay_ms: int, *, wish: WaitKind, quickly: bool = False
        ) -> WaitRoute:
            if wish is not WaitKind.RETRY:
                return original(context, queue, delay_ms, wish=wish, quickly=quickly)
            settings = context.settings
            # It also raises for a delay that is too long.
            true_ms = lane_ms(delay_ms, exact=context.exact_lanes, ratio=settings.grid, limit_ms=settings.max_delay_ms)
            there = original(context, queue, 0, wish=WaitKind.RETRY, quickly=quickly)
            return replace(there, length_ms=true_ms)

        return wait_route

    def first_failed_at_ms(self, headers: Any, *, now_ms: int) -> int:
        """In place of the one that deadlines count from: waits that did not take place have passed, nevertheless."""
        waits = (record.delay_ms for record in self._file.read() if record.task_id == headers.get("id"))
        return first_failed_at_ms(headers, now_ms=now_ms) - sum(waits)

    def on_publish(self, headers: Any, **_: Any) -> None:
        if headers.get("retries") == 0:  # protocol 1 has it elsewhere
            self._file.add(Record(event="sent", task=headers["task"], task_id=headers["id"]))

    def on_prerun(self, task: Any, **_: Any) -> None:
        """Let an eager run decide as one in a worker does: with a message, if not one from a queue."""
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
            self._file.add(Record(event="called", task=task.name, task_id=request.id))
        request.delivery_info = DeliveryInfo(
            request.delivery_info,
            queue=EAGER,
            message=message,
            worker=EAGER.name,
            is_bound=False,
            forwards=False,
            is_watched=True,
        )
        pay_in(task, retries=request.retries)

    def on_postrun(self, task: Any, task_id: str, state: str, **_: Any) -> None:
        if state in {SUCCESS, IGNORED}:
            self._note_end(task.name, task_id, task.request.retries, state)

    def on_failure(self, sender: Any, task_id: str, exception: Any, **_: Any) -> None:
        """In whichever process Celery learnt of it."""
        self._note_end(sender.name, task_id, sender.request.retries, FAILURE, exception)

    def on_revoked(self, request: Any, **_: Any) -> None:
        self._note_end(request.task_name, request.id, 0, REVOKED)

    def _note_end(self, task: str, task_id: str, retries: int | None, state: str, error: Any = None) -> None:
        text = text_of(error) if isinstance(error, BaseException) else ""
        end = Record(event="ended", task=task, task_id=task_id, attempt=(retries or 0) + 1, reason=state, error=text)
        self._file.add(end)


def _stop_soon(consumer: Any) -> None:
    """Celery's worker looks whether it is to stop at its next event, which on RabbitMQ may be ten seconds off."""
    (consumer.hub or consumer.timer).call_repeatedly(0.1, int)


def _now(_task: Any, apply_async: Callable[..., Any], args: Any, kwargs: Any, options: dict[str, Any]) -> Any:
    """In place of an appointment."""
    return apply_async(args, kwargs, **{key: it for key, it in options.items() if key not in {"countdown", "eta"}})
