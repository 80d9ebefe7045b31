"""DLXRequest: what the worker's main process knows of a delivery and Celery's own request does not.

The main process sees what no code in the pool can: a task that ran past its hard time limit, a pool process that is
gone. Celery acknowledges both. Nothing here may raise: billiard swallows it, and the delivery would hang for ever.
"""

from __future__ import annotations

import functools
import os
from dataclasses import replace
from types import FunctionType
from typing import TYPE_CHECKING, Any

from billiard.einfo import ExceptionWithTraceback
from celery import signals
from celery.exceptions import (
    Ignore,
    InvalidTaskError,
    Reject,
    Retry,
    Terminated,
    TimeLimitExceeded,
    WorkerLostError,
)
from celery.utils.log import get_logger
from celery.utils.time import timezone
from celery.worker import state
from celery.worker.request import Request
from kombu.asynchronous.timer import to_timestamp
from kombu.utils.encoding import safe_repr

from celery_dlx_retry.app.clock import eta_after, is_due
from celery_dlx_retry.app.context import context_of
from celery_dlx_retry.app.failure_pause import place_of
from celery_dlx_retry.app.known_delays import delay_after_crash_ms
from celery_dlx_retry.celery_compat import (
    clear_eta,
    distrusts_stored_success,
    is_ended_by_celery,
    is_revoked_or_cancelled,
    set_delivery_info,
    storable,
    task_context,
)
from celery_dlx_retry.errors import Unpublishable
from celery_dlx_retry.events import DeadLettered, needs_returns
from celery_dlx_retry.policy.decision import Dead, LetFail, Wait
from celery_dlx_retry.policy.reasons import Reason
from celery_dlx_retry.topology.wait_route import WaitKind
from celery_dlx_retry.values.log_lines import escaped, request_fields
from celery_dlx_retry.wire.header_numbers import MOST_RETRIES, retries_of
from celery_dlx_retry.wire.headers import CRASHES, crashes_of, is_returned_retry
from celery_dlx_retry.wire.validation import FORGEABLE, flaw_of
from celery_dlx_retry.worker import outcome
from celery_dlx_retry.worker.dead_letter import text_of
from celery_dlx_retry.worker.give_back import nack
from celery_dlx_retry.worker.process_budget import charged, pay_in, refused
from celery_dlx_retry.worker.retry_message import copied_headers, copy_with, has_room_to_count
from celery_dlx_retry.worker.returned import emit_returned
from celery_dlx_retry.worker.run_state import DeliveryInfo, as_sent, message_of
from celery_dlx_retry.worker.settle import Delivery, can_call_back, emit_given_back, facts_of, settle_dead, settle_retry
from celery_dlx_retry.worker.trace import as_lost, as_raised

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_dlx_retry.app.context import AppContext
    from celery_dlx_retry.events import Event
    from celery_dlx_retry.policy.decision import Decision
    from celery_dlx_retry.policy.rule_retries import RuleRetry
    from celery_dlx_retry.topology.names import WorkQueue
    from celery_dlx_retry.worker.outcome import Outcome

logger = escaped(get_logger(__name__))

_CELERYS_OWN = (Ignore, Reject, Retry, Terminated)
_MODULES = frozenset((__name__, "celery.worker.request"))


@distrusts_stored_success(lambda request: isinstance(request.delivery_info, DeliveryInfo))
class DLXRequest(Request):
    """Celery's request, which knows the queue that it came from, and lets no failure pass unkept."""

    _dlx: AppContext
    _is_settled = False  # the message is a dead letter or waits in a lane; only the acknowledgement is left
    #: Celery has two callbacks for a hard time limit; the first one did it all, but for calling Task.on_failure.
    _is_timeout_handled = False
    _dead_of: Any = None
    _dead_facts: dict[str, Any] | None = None  # what Celery's event says of the dead letter of this run
    _retry_eta: str | None = None  # when the retry of this run runs
    _rule: RuleRetry | None = None  # of the policy, that granted the retry after a hard time limit

    def __init__(self, message: Any, *, headers: Any = None, **options: Any) -> None:
        try:
            has_waited = is_returned_retry(sent := message.headers if headers is None else headers)
            # Celery parses an eta and looks up the time zone. The eta of a retry that has waited decides nothing.
            super().__init__(message, headers={**sent, "eta": None} if has_waited else headers, **options)
            _check(self)
        except (KeyError, ValueError, TypeError, AttributeError, OverflowError) as exc:
            # Celery's worker dies of such a message, the next one too, and so on.
            raise InvalidTaskError(f"not a sound message: {exc!r}") from exc
        for name in FORGEABLE:
            self.request_dict.pop(name, None)
        # None for Celery's own count, and one so large that the next one is not carried, are a sender's.
        if (retries := self.request_dict.get("retries", 0)) is None or retries > MOST_RETRIES:
            self.request_dict["retries"] = retries_of(self.request_dict)
        self.request_dict["eta"] = sent.get("eta")
        context = self._dlx = context_of(self.app)
        if not context.is_rabbitmq:
            return
        is_watched = self._is_watched()
        if has_waited or (self.eta is not None and is_due(self.eta)):
            # It has waited in the broker: Celery need not hold it for a moment more.
            clear_eta(self, is_watched=is_watched)
        queue = context.queue_of(message)
        is_bound, value = context.is_bound(queue), message_of(message)
        info = DeliveryInfo(
            as_sent(self.delivery_info, value, queue=queue, names=context.names),
            queue=queue,
            message=value,
            worker=f"{self.hostname}/{context.start_id}",
            is_bound=is_bound,
            forwards=is_bound and context.pipeline is not None,
            is_watched=is_watched,
        )
        set_delivery_info(self, info)
        if self.request_dict.get("retries") and needs_returns():
            emit_returned(context, info, task=self.name, task_id=self.id, retries=self.request_dict["retries"])

    def _is_watched(self) -> bool:
        """Return whether an event monitor, or a patch of a request, reads the traceback of a retry."""
        kind, eventer = type(self), self.eventer
        for method in (Request.on_failure, Request.send_event, kind.on_retry, kind.send_event, kind.on_failure):
            # As patch_detection.is_function(), without a call: this is for every delivery.
            if type(method) is not FunctionType or method.__globals__.get("__name__") not in _MODULES:
                return True
        is_sending = eventer and eventer.enabled and self.task.send_events
        # A worker that tells of its heartbeat alone has a dispatcher, too.
        return bool(is_sending and (not eventer.groups or "task" in eventer.groups))

    def on_failure(self, exc_info: Any, send_failed_event: bool = True, return_ok: bool = False) -> Any:  # noqa: FBT001, FBT002
        """Settle what the pool process did not, before Celery acknowledges or rejects it."""
        ended: Outcome | None = exc_info.__dict__.pop("dlx_outcome", None)
        error = _error_of(exc_info)
        if isinstance(ended, outcome.GiveBack):
            self._give_back(ended.place, has_waited=not self.delivery_info.forwards)
            return None
        self._retry_eta, self._dead_facts = getattr(ended, "eta", None), getattr(ended, "facts", None)
        if isinstance(ended, outcome.Retry) and not ended.is_published:
            # Its run is over: to cancel active tasks must not end a process that is busy with another task.
            state.task_ready(self)
            fail = functools.partial(self._fail, error, exc_info, send_failed_event, return_ok)
            settle_retry(self._delivery(fail, self._retry_refused), ended)
            return None
        # If Celery's tracer has not reported the failure, the main process does, as with a process that is gone.
        return_ok = return_ok and getattr(ended, "is_reported", not isinstance(ended, outcome.Unsettled))
        if isinstance(error, Terminated) and not is_ended_by_celery(self):
            # Its process was ended because of another task that had been there; Celery would acknowledge this one.
            exc_info = as_lost(error)
            error = _error_of(exc_info)
        self._is_settled = isinstance(ended, outcome.SETTLED)
        if isinstance(ended, outcome.Parked):  # monitors have heard that it started
            self.send_event("task-retried", exception="Parked()", traceback="")
        if self._is_settled or not self._is_ours_to_settle(error):
            return self._fail(error, exc_info, send_failed_event, return_ok)
        if isinstance(error, (SystemExit, KeyboardInterrupt)):
            exc_info = as_lost(error)
            error = _error_of(exc_info)
        if state.should_terminate is not None and isinstance(error, (WorkerLostError, TimeLimitExceeded)):
            return None  # a cold shutdown: unacknowledged, the broker delivers it again
        self._settle(error, exc_info, functools.partial(self._fail, error, exc_info, send_failed_event, return_ok))
        return None

    def _fail(self, error: BaseException, exc_info: Any, send_failed_event: bool, return_ok: bool) -> Any:  # noqa: FBT001
        """Let Celery handle the failure, and acknowledge it. If the message is settled, no error may come of that."""
        if self._is_settled and isinstance(error, MemoryError):
            # Celery lets the whole worker die of it, which would then be delivered again.
            self.acknowledge()
            state.task_ready(self)
            self.send_event("task-failed", exception=safe_repr(error), traceback=exc_info.traceback)
            return None
        if not isinstance(error, Exception):
            exc_info.exception = storable(error)
        try:
            return super().on_failure(exc_info, send_failed_event=send_failed_event, return_ok=return_ok)
        except Exception:
            if not self._is_settled:
                raise
            # A result backend, or an event. The message is safe; only the report of it failed.
            fields = request_fields("ReportFailed", self)
            logger.exception("after the hand-over task=%s id=%s", self.name, self.id, extra=fields)
            self.reject()
            return None

    def send_event(self, kind: str, **fields: Any) -> None:
        """Send Celery's event; that of a retry says when it runs, and that of a dead letter has one of ours behind it.

        Only behind it: before, monitors take its name for a state that they do not know.
        """
        if kind == "task-retried" and self._retry_eta is not None:
            fields["eta"] = self._retry_eta
        super().send_event(kind, **fields)
        if kind == "task-failed" and self._dead_facts is not None:
            super().send_event("task-dead-lettered", **self._dead_facts)

    def on_accepted(self, pid: int, time_accepted: float) -> None:
        """A process of the pool has it. Hard time limits are retried from here, so they are paid for here, too."""
        super().on_accepted(pid, time_accepted)
        has_budget = (self.task.budget or self._dlx.settings.budget) is not None
        is_first = has_budget and not self.request_dict.get("retries")
        if is_first and pid != os.getpid() and isinstance(self.delivery_info, DeliveryInfo):
            pay_in(self.task)

    def on_timeout(self, soft: bool, timeout: float) -> None:  # noqa: FBT001
        """A hard time limit comes here after on_failure, which did it all; with gevent it comes here alone."""
        if soft or not isinstance(self.delivery_info, DeliveryInfo) or not self.task.acks_late:
            super().on_timeout(soft, timeout)
            return
        fields = request_fields("HardTimeLimit", self) | {"dlx_limit_s": timeout}
        logger.warning("Hard time limit (%ss) exceeded for %s[%s]", timeout, self.name, self.id, extra=fields)
        if not self._is_timeout_handled:
            self.on_failure(as_raised(TimeLimitExceeded(timeout)))
        if self._dead_of is not None:
            try:
                error = _error_of(self._dead_of)
                self.task.on_failure(error, self.id, self.args, self.kwargs, self._dead_of)
            except Exception:
                fields = request_fields("HookFailed", self)
                logger.exception("on_failure raised task=%s id=%s", self.name, self.id, extra=fields)

    def reject(self, requeue: bool = False) -> None:  # noqa: FBT001, FBT002
        """What is handed over is not rejected as well: it would be there twice."""
        if not self._is_settled:
            super().reject(requeue)
        elif not self.acknowledged:
            self.acknowledge()
            self.send_event("task-rejected", requeue=requeue)

    def _delivery(self, acknowledge: Callable[[], Any], give_back: Callable[[Any], None]) -> Delivery:
        def settled(event: Event) -> None:
            self._is_settled = True
            self._dead_facts = facts_of(event) if isinstance(event, DeadLettered) else None
            acknowledge()

        return Delivery(
            context=self._dlx,
            message=self.delivery_info.message,
            queue=self._queue,
            task=self.name,
            task_id=self.id,
            worker=self.hostname,
            acknowledge=settled,
            give_back=give_back,
            is_main=True,
        )

    def _retry_refused(self, problem: Exception) -> None:
        """The broker did not take the retry of a pool process."""
        if isinstance(problem, Unpublishable):
            self.on_failure(as_raised(problem))  # a dead letter; the pool process has stored no failure
        else:
            self._not_handed_over(problem)

    @property
    def _queue(self) -> WorkQueue:
        return self.delivery_info.queue  # type: ignore[no-any-return]

    def _is_ours_to_settle(self, error: BaseException) -> bool:
        return (
            isinstance(self.delivery_info, DeliveryInfo)
            and not isinstance(error, _CELERYS_OWN)
            and not self.acknowledged
            and not is_revoked_or_cancelled(self)
        )

    def _settle(self, error: BaseException, exc_info: Any, fail: Callable[[], Any]) -> None:
        """Hand the message over; let it ``fail`` if it is a failure now."""
        self._is_timeout_handled = isinstance(error, TimeLimitExceeded)
        context = self._dlx
        if context.quick_pace.left():
            self._give_back("")  # the last publish failed and held up the event loop: wait out the pause
            return

        def failed() -> None:
            self._dead_of = exc_info if self._is_timeout_handled else None
            fail()

        try:
            self._apply(self._decision(error), error, exc_info, failed)
        except Exception as problem:  # noqa: BLE001 - billiard would swallow it, and the delivery would hang for ever
            context.quick_pace.failed()
            self._not_handed_over(problem)

    def _apply(self, decision: Decision, error: BaseException, exc_info: Any, fail: Callable[[], None]) -> None:
        if isinstance(decision, Wait):
            self._retry(error, decision, exc_info, fail)
        elif isinstance(decision, Dead):
            delivery = self._delivery(fail, self._not_handed_over)
            settle_dead(delivery, reason=decision.reason, error=error, fault=decision.fault)
        else:
            self._is_settled = True
            fail()

    def _retry(self, error: BaseException, wait: Wait, exc_info: Any, fail: Callable[[], None]) -> None:
        context, request = self._dlx, task_context(self)
        route = context.lanes.plain(self._queue, wait.delay_ms)
        if route is None or not can_call_back(context) or not context.is_bound(self._queue):
            route = context.wait_route(self._queue, wait.delay_ms, wish=WaitKind.RETRY, quickly=True)
        eta = self._retry_eta = eta_after(self.app, route.length_ms / 1000)
        retry = outcome.Retry(delay_ms=route.length_ms, number=request.retries + 1, error=text_of(error), eta=eta)
        info: DeliveryInfo = self.delivery_info
        headers = copied_headers(info.message.headers, request, retry, self._rule)
        if isinstance(error, WorkerLostError):
            headers[CRASHES] = crashes_of(headers) + 1

        def refused_by(problem: Exception) -> None:
            other: Decision | None = refused(self.task, wait, problem)
            if isinstance(problem, Unpublishable):
                other = Dead(Reason.FAILED, problem)  # as a pool process does
            if other is None:
                self._not_handed_over(problem)
            else:
                self._apply(other, error, exc_info, fail)

        acknowledge = functools.partial(self._end_retry, error, retry.delay_ms, exc_info)
        message = copy_with(context, info.message, headers)
        settle_retry(self._delivery(acknowledge, refused_by), replace(retry, message=message))

    def _not_handed_over(self, problem: Exception) -> None:
        emit_given_back(task=self.name, task_id=self.id, queue=self._queue.name, worker=self.hostname, problem=problem)
        self._give_back(place_of(problem))

    def _give_back(self, place: str, *, has_waited: bool = False) -> None:
        """Let the delivery go back to its queue after a pause, which the event loop must not sit out."""
        state.task_ready(self)
        context = self._dlx
        self.message.reject = functools.partial(nack, self.message)
        if has_waited or context.consumer is None:
            self.reject(requeue=True)
        else:
            context.consumer.timer.call_after(context.paces.failed(place), self.reject, (True,))

    def _decision(self, error: BaseException) -> Decision:
        message = self.delivery_info.message
        # Protocol 1 counts in its body, which we do not rewrite; and a full frame has no room to count in.
        has_retries = "task" in message.headers and has_room_to_count(message)
        if isinstance(error, WorkerLostError):
            crashes, context = crashes_of(message.headers) + 1, self._dlx
            if not has_retries or crashes >= context.settings.crash_limit:
                return Dead(Reason.WORKER_LOST)
            return Wait(delay_after_crash_ms(crashes, context.settings))
        if isinstance(error, TimeLimitExceeded):
            return self._decision_on_timeout(error, has_retries=has_retries)
        return Dead(Reason.FAILED)

    def _decision_on_timeout(self, error: BaseException, *, has_retries: bool) -> Decision:
        decision: Decision = self.task.decide(error, request=task_context(self))
        if isinstance(decision, Wait) and has_retries:
            self._rule = decision.rule
            return charged(self.task, decision)
        return decision if isinstance(decision, LetFail) else Dead(Reason.TIMEOUT)

    def _end_retry(self, error: BaseException, delay_ms: int, exc_info: Any) -> None:
        self.acknowledge()
        state.task_ready(self)
        try:
            self._announce_retry(error, delay_ms, exc_info)
        except Exception:
            # A result backend or a user's hook. The message is safe; only the report of it failed.
            fields = request_fields("ReportFailed", self)
            logger.exception("retry not announced task=%s id=%s", self.name, self.id, extra=fields)

    def _announce_retry(self, error: BaseException, delay_ms: int, exc_info: Any) -> None:
        """Store the state, send the event and call the hooks, as Celery does for a retry in a pool process."""
        task, context = self.task, task_context(self)
        if self.store_errors:
            task.backend.mark_as_retry(self.id, error, exc_info.traceback, request=context)
        self.send_event("task-retried", exception=safe_repr(error), traceback=exc_info.traceback)
        reason = Retry(exc=error, when=delay_ms / 1000)
        task.request_stack.push(context)
        try:
            task.on_retry(error, self.id, self.args, self.kwargs, exc_info)
            signals.task_retry.send(sender=task, request=context, reason=reason, einfo=exc_info)
        finally:
            task.request_stack.pop()


def _error_of(exc_info: Any) -> BaseException:
    error: BaseException = exc_info.exception
    return error.exc if isinstance(error, ExceptionWithTraceback) else error


def _check(request: Request) -> None:
    """What Celery finds out only when it is too late for a message to be kept."""
    if flaw := flaw_of(request.request_dict):
        raise TypeError(flaw)
    if request.eta is not None:
        to_timestamp(timezone.to_system(request.eta))  # Celery drops what overflows here
