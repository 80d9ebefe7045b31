"""DLXRequest: what the worker's main process knows of a delivery and Celery's own request does not.

The main process sees what no code in the pool can: a task that ran past its hard time limit, a pool process that is
gone. Celery acknowledges both. Nothing here may raise: billiard swallows it, and the delivery would hang for ever.
"""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING, Any

from billiard.einfo import ExceptionInfo, ExceptionWithTraceback
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

from celery_dlx_retry.app.clock import is_due
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
from celery_dlx_retry.errors import DLXError, Nacked, Unpublishable
from celery_dlx_retry.policy.decision import Dead, LetFail, Wait
from celery_dlx_retry.policy.reasons import Reason
from celery_dlx_retry.topology.wait_route import WaitKind
from celery_dlx_retry.values.escaping import escaped
from celery_dlx_retry.wire.header_numbers import MOST_RETRIES, retries_of
from celery_dlx_retry.wire.header_size import has_room, room_beside
from celery_dlx_retry.wire.headers import crashes_of
from celery_dlx_retry.wire.validation import FORGEABLE, flaw_of
from celery_dlx_retry.worker.celery_publish import emit_retry
from celery_dlx_retry.worker.dead_letter import bury
from celery_dlx_retry.worker.give_back import emit_given_back, nack
from celery_dlx_retry.worker.main_process_publish import can_forward, forward
from celery_dlx_retry.worker.main_process_retry import announce_retry, write_retry
from celery_dlx_retry.worker.patch_detection import is_function
from celery_dlx_retry.worker.process_budget import charged, pay_in, refused
from celery_dlx_retry.worker.run_state import DeliveryInfo, as_sent, message_of
from celery_dlx_retry.worker.trace import as_lost, as_raised

if TYPE_CHECKING:
    from celery_dlx_retry.policy.decision import Decision
    from celery_dlx_retry.policy.rule_retries import RuleRetry
    from celery_dlx_retry.topology.names import WorkQueue
    from celery_dlx_retry.wire.message import Message, PreparedRetry

logger = escaped(get_logger(__name__))

_CELERYS_OWN = (Ignore, Reject, Retry, Terminated)


@distrusts_stored_success(lambda request: isinstance(request.delivery_info, DeliveryInfo))
class DLXRequest(Request):
    """Celery's request, which knows the queue that it came from, and lets no failure pass unkept."""

    #: The message is a dead letter or waits in a lane; what is left of the delivery is to be acknowledged.
    _is_settled = False
    #: Celery has two callbacks for a hard time limit; the first one did it all, but for calling Task.on_failure.
    _is_timeout_handled = False
    _dead_of: Any = None
    _rule: RuleRetry | None = None  # of the policy, that granted the retry after a hard time limit

    def __init__(self, message: Any, **options: Any) -> None:
        try:
            super().__init__(message, **options)
            _check(self)
        except (KeyError, ValueError, TypeError, AttributeError, OverflowError) as exc:
            # Celery's worker dies of such a message, the next one too, and so on.
            raise InvalidTaskError(f"not a sound message: {exc!r}") from exc
        for name in FORGEABLE:
            self.request_dict.pop(name, None)
        # None for Celery's own count, and one so large that the next one is not carried, are a sender's.
        if (retries := self.request_dict.get("retries", 0)) is None or retries > MOST_RETRIES:
            self.request_dict["retries"] = retries_of(self.request_dict)
        context = context_of(self.app)
        if not context.is_rabbitmq:
            return
        if is_due(self.eta):
            # It has waited in the broker: Celery need not hold it for a moment more. The task still sees its eta.
            clear_eta(self)
        queue, value = context.queue_of(message), message_of(message)
        info = DeliveryInfo(
            as_sent(self.delivery_info, value, queue=queue, names=context.names),
            queue=queue,
            message=value,
            worker=f"{self.hostname}/{context.start_id}",
            is_bound=context.is_bound(queue),
            forwards=context.is_bound(queue) and context.pipeline is not None,
            is_watched=self._is_watched(),
        )
        set_delivery_info(self, info)
        set_delivery_info(self, info)
        set_delivery_info(self, info)

    def _is_watched(self) -> bool:
        """Whether anybody is told of the traceback of a retry: a monitor, or who has put something in our place."""
        kind, eventer = type(self), self.eventer
        if not is_function(kind.on_failure, __name__) or not all(
            is_function(it, "celery.worker.request") for it in (Request.on_failure, kind.on_retry, kind.send_event)
        ):
            return True
        is_sending = eventer and eventer.enabled and self.task.send_events
        # A worker that tells of its heartbeat alone has a dispatcher, too.
        return bool(is_sending and (not eventer.groups or "task" in eventer.groups))

    def on_failure(self, exc_info: Any, send_failed_event: bool = True, return_ok: bool = False) -> Any:  # noqa: FBT001, FBT002
        """Settle what the pool's child did not, before Celery acknowledges or rejects it."""
        parcel: PreparedRetry | None = exc_info.__dict__.pop("dlx_parcel", None)
        if parcel is not None:
            options = {"send_failed_event": send_failed_event, "return_ok": return_ok}
            then = functools.partial(self._on_forwarded, parcel, exc_info, options)
            # Its run is over. Whoever cancels what is active would end a process that is busy with another task.
            state.task_ready(self)
            forward(context_of(self.app), parcel, self._queue, then)
            return None
        if getattr(exc_info, "dlx_given_back", None) is not None:
            self._give_back(exc_info.dlx_given_back, has_waited=not self.delivery_info.forwards)
            return None
        # Celery's tracer told nobody of it: that is left to the main process, as with a process that is gone.
        return_ok = return_ok and not getattr(exc_info, "dlx_is_untold", False)
        error = _error_of(exc_info)
        if isinstance(error, Terminated) and not self._is_to_be_terminated():
            # Its process was ended for the sake of another task that had been there; Celery would acknowledge this one.
            exc_info = as_lost(error)
            error = _error_of(exc_info)
        self._is_settled = getattr(exc_info, "dlx_is_settled", False)
        if not self._is_settled and self._is_ours_to_settle(error):
            if isinstance(error, (SystemExit, KeyboardInterrupt)):
                exc_info = as_lost(error)
                error = _error_of(exc_info)
            if state.should_terminate is not None and isinstance(error, (WorkerLostError, TimeLimitExceeded)):
                return None  # a cold shutdown: unacknowledged, the broker delivers it again
            self._is_timeout_handled = isinstance(error, TimeLimitExceeded)
            if not self._is_failure(error, exc_info):
                return None
            self._dead_of = exc_info if self._is_timeout_handled else None
        return self._fail(error, exc_info, send_failed_event=send_failed_event, return_ok=return_ok)

    def _fail(self, error: BaseException, exc_info: Any, **options: bool) -> Any:
        """Let Celery handle the failure, and acknowledge it; of what is settled nothing is left to go wrong."""
        if self._is_settled and isinstance(error, MemoryError):
            # Celery lets the whole worker die of it, which would then be delivered again.
            self.acknowledge()
            state.task_ready(self)
            self.send_event("task-failed", exception=safe_repr(error), traceback=exc_info.traceback)
            return None
        if not isinstance(error, Exception):
            exc_info.exception = storable(error)
        try:
            return super().on_failure(exc_info, **options)
        except Exception:
            if not self._is_settled:
                raise
            # A result backend, or an event. The message is safe; only the word of it did not get through.
            logger.exception("after the hand-over task=%s id=%s", self.name, self.id)
            self.reject()
            return None

    def on_accepted(self, pid: int, time_accepted: float) -> None:
        """A process of the pool has it. Hard time limits are retried from here, so they are paid for here, too."""
        super().on_accepted(pid, time_accepted)
        if pid != os.getpid() and isinstance(self.delivery_info, DeliveryInfo):
            pay_in(self.task, retries=self.request_dict.get("retries"))

    def on_timeout(self, soft: bool, timeout: float) -> None:  # noqa: FBT001
        """A hard time limit comes here after on_failure, which did it all; with gevent it comes here alone."""
        if soft or not isinstance(self.delivery_info, DeliveryInfo) or not self.task.acks_late:
            super().on_timeout(soft, timeout)
            return
        logger.error("Hard time limit (%ss) exceeded for %s[%s]", timeout, self.name, self.id)
        if not self._is_timeout_handled:
            try:
                raise TimeLimitExceeded(timeout)  # noqa: TRY301 - for its traceback
            except TimeLimitExceeded:
                self.on_failure(ExceptionInfo())
        if self._dead_of is not None:
            try:
                error = _error_of(self._dead_of)
                self.task.on_failure(error, self.id, self.args, self.kwargs, self._dead_of)
            except Exception:
                logger.exception("on_failure raised task=%s id=%s", self.name, self.id)

    def reject(self, requeue: bool = False) -> None:  # noqa: FBT001, FBT002
        """What is handed over is not rejected as well: it would be there twice."""
        if not self._is_settled:
            super().reject(requeue)
        elif not self.acknowledged:
            self.acknowledge()
            self.send_event("task-rejected", requeue=requeue)

    def _on_forwarded(
        self, parcel: PreparedRetry, exc_info: Any, options: dict[str, bool], problem: DLXError | None
    ) -> None:
        """The retry that came with a result is published, or not."""
        if isinstance(problem, Unpublishable):
            self.on_failure(as_raised(problem))  # a dead letter; the pool process has stored no failure
            return
        if problem is not None:
            self._not_handed_over(problem)
            return
        self._retry_is_out(parcel)
        self.on_failure(exc_info, **options)

    def _retry_is_out(self, parcel: PreparedRetry) -> None:
        context = context_of(self.app)
        context.paces.reached(context.lanes.place(self._queue, parcel.length_ms))
        self._is_settled = True
        emit_retry(
            task_context(self), task=self.name, delay_ms=parcel.length_ms, queue=self._queue.name, error=parcel.error
        )

    @property
    def _queue(self) -> WorkQueue:
        info: DeliveryInfo = self.delivery_info
        return info.queue

    def _is_to_be_terminated(self) -> bool:
        """Somebody revoked this task, or a shutdown cancels it."""
        return is_ended_by_celery(self)

    def _is_ours_to_settle(self, error: BaseException) -> bool:
        return (
            isinstance(self.delivery_info, DeliveryInfo)
            and not isinstance(error, _CELERYS_OWN)
            and not self.acknowledged
            and not is_revoked_or_cancelled(self)
        )

    def _is_failure(self, error: BaseException, exc_info: Any) -> bool:
        """Hand the message over; True if Celery is to handle a failure now, False if the task lives on."""
        context = context_of(self.app)
        if context.quick_pace.left():
            self._give_back("")  # a moment ago it could not be done, and the event loop stood still to find out
            return False
        try:
            is_failure = self._settle(error, exc_info)
        except Exception as problem:  # noqa: BLE001 - billiard would swallow it, and the delivery would hang for ever
            context.quick_pace.failed()
            self._not_handed_over(problem)
            return False
        context.quick_pace.succeeded()
        return is_failure

    def _not_handed_over(self, problem: Exception) -> None:
        emit_given_back(self, task=self.name, queue=self._queue.name, problem=problem)
        self._give_back(place_of(problem))

    def _give_back(self, place: str, *, has_waited: bool = False) -> None:
        """Let the delivery go back to its queue after a pause, which the event loop must not sit out."""
        state.task_ready(self)
        context = context_of(self.app)
        self.message.reject = functools.partial(nack, self.message)
        if has_waited or context.consumer is None:
            self.reject(requeue=True)
        else:
            context.consumer.timer.call_after(context.paces.failed(place), self.reject, (True,))

    def _settle(self, error: BaseException, exc_info: Any) -> bool:
        """Hand the message over; True if it is a failure now, False if it lives on in a lane."""
        decision = self._decision(error)
        if isinstance(decision, Wait):
            try:
                if self._is_retried_later(error, decision, exc_info):
                    return False
                decision = self._retried(error, decision, exc_info)
            except Unpublishable as problem:
                decision = Dead(Reason.FAILED, problem)  # as a pool process does
        if isinstance(decision, Wait):
            return False
        if isinstance(decision, Dead):
            info: DeliveryInfo = self.delivery_info
            bury(
                context_of(self.app),
                info.message,
                info.queue,
                reason=decision.reason,
                error=error,
                fault=decision.fault,
                worker=self.hostname,
                task=self.name,
                task_id=self.id,
                quickly=True,
            )
        self._is_settled = True
        return True

    def _decision(self, error: BaseException) -> Decision:
        message = self.delivery_info.message
        # Protocol 1 counts in its body, which we do not rewrite; and a full frame has no room to count in.
        has_retries = "task" in message.headers and _has_room(message)
        if isinstance(error, WorkerLostError):
            crashes, context = crashes_of(message.headers) + 1, context_of(self.app)
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

    def _retried(self, error: BaseException, wait: Wait, exc_info: Any) -> Decision:
        """The wait, if it is in a lane now; what else is to be done with it, if that lane is full."""
        try:
            self._retry(error, wait.delay_ms, exc_info)
        except Nacked as problem:
            other = refused(self.task, wait, problem)
            if other is None:
                raise
            return self._retried(error, other, exc_info) if isinstance(other, Wait) else other
        return wait

    def _is_retried_later(self, error: BaseException, wait: Wait, exc_info: Any) -> bool:
        """Whether the event loop has taken the retry over; what is left is done when it is published."""
        context = context_of(self.app)
        is_forwarded = can_forward(context) and context.is_bound(self._queue)
        there = context.lanes.plain(self._queue, wait.delay_ms) if is_forwarded else None
        if there is None:
            return False
        parcel = write_retry(self, error, there, rule=self._rule)

        def then(problem: DLXError | None) -> None:
            if problem is None:
                self._end_retry(error, parcel, exc_info)
            elif isinstance(problem, Unpublishable):
                self.on_failure(as_raised(problem))  # a dead letter
            else:
                self._not_handed_over(problem)

        forward(context, parcel, self._queue, then)
        return True

    def _retry(self, error: BaseException, delay_ms: int, exc_info: Any) -> None:
        context = context_of(self.app)
        there = context.wait_route(self._queue, delay_ms, wish=WaitKind.RETRY, quickly=True)
        parcel = write_retry(self, error, there, rule=self._rule)
        with context.producer_for(there, quickly=True) as producer:
            producer.publish_message(parcel.message, exchange=there.exchange, routing_key=there.routing_key)
        self._end_retry(error, parcel, exc_info)

    def _end_retry(self, error: BaseException, parcel: PreparedRetry, exc_info: Any) -> None:
        self._retry_is_out(parcel)
        self.acknowledge()
        state.task_ready(self)
        try:
            announce_retry(self, error, parcel.length_ms, exc_info)
        except Exception:
            # A result backend or a user's hook. The message is safe; only the word of it did not get through.
            logger.exception("retry not announced task=%s id=%s", self.name, self.id)


def _error_of(exc_info: Any) -> BaseException:
    error: BaseException = exc_info.exception
    return error.exc if isinstance(error, ExceptionWithTraceback) else error


def _has_room(message: Message) -> bool:
    """Return whether a retry of it can count; not one with a header that AMQP cannot carry."""
    try:
        return has_room(message.headers, room=room_beside(message.properties))
    except Unpublishable:
        return False


def _check(request: Request) -> None:
    """What Celery finds out only when it is too late for a message to be kept."""
    if flaw := flaw_of(request.request_dict):
        raise TypeError(flaw)
    if request.eta is not None:
        to_timestamp(timezone.to_system(request.eta))  # Celery drops what overflows here
