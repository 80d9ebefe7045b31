"""The circuit breakers of this process: before a task runs, they are asked; after it has, they are told."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Any

from billiard.einfo import ExceptionInfo
from celery.app.trace import TraceInfo, trace_ok_t
from celery.exceptions import Ignore, Reject, SoftTimeLimitExceeded
from celery.states import IGNORED, REJECTED
from celery.utils.log import get_logger

from celery_dlx_retry.app.clock import now_ms
from celery_dlx_retry.app.context import context_of
from celery_dlx_retry.app.per_process import own, steady_ms
from celery_dlx_retry.errors import PublishError, TopologyError, Unpublishable
from celery_dlx_retry.events import BreakerChanged, Parked, emit
from celery_dlx_retry.policy.breaker import Circuit, outcome_of
from celery_dlx_retry.policy.decision import Wait
from celery_dlx_retry.topology.wait_route import WaitKind
from celery_dlx_retry.values.escaping import escaped
from celery_dlx_retry.wire.headers import PARKED_AT
from celery_dlx_retry.worker.give_back import give_back
from celery_dlx_retry.worker.run_state import addressed

if TYPE_CHECKING:
    from celery_dlx_retry.policy.breaker import Breaker, Outcome
    from celery_dlx_retry.policy.decision import Decision
    from celery_dlx_retry.worker.run_state import DeliveryInfo, RunState

logger = escaped(get_logger(__name__))


class ProcessBreaker:
    """A circuit that all threads of this process share."""

    def __init__(self, task: str, breaker: Breaker) -> None:
        self.breaker = breaker
        self._task = task
        self._lock = Lock()
        self._circuit = Circuit(breaker=breaker)

    def ask(self) -> bool:
        """Whether a message may run now."""
        with self._lock:
            before = self._circuit
            self._circuit, may_run = before.admit(now_ms=steady_ms())
        self._emit(before)
        return may_run

    def tell(self, outcome: Outcome) -> None:
        """What became of it."""
        with self._lock:
            before = self._circuit
            self._circuit = before.record(outcome, now_ms=steady_ms())
        self._emit(before)

    def _emit(self, before: Circuit) -> None:
        after = self._circuit
        if before.quota == after.quota:
            return
        emit(
            BreakerChanged(
                task=self._task,
                state="closed" if after.quota is None else "open" if after.quota == 1 else "half open",
                interval_ms=self.breaker.interval_ms,
                per_interval=after.quota,
            )
        )


def switch_of(task: Any) -> ProcessBreaker | None:
    """The task's own; None if it has no breaker."""
    breaker: Breaker | None = task.breaker
    return None if breaker is None else own(task.app, lambda: ProcessBreaker(task.name, breaker), "switch", task.name)


def held_back(task: Any, info: DeliveryInfo, *, task_id: str) -> Any:
    """None if the message may run. If not it is parked, and this is what to tell the worker's main process."""
    switch = switch_of(task)
    if switch is None or switch.ask():
        return None
    try:
        _park(task, info, delay_ms=switch.breaker.interval_ms, task_id=task_id)
    except Unpublishable as problem:
        # It would come back until the breaker closes. It runs, and is done or a dead letter.
        logger.warning("not parked, runs task=%s id=%s: %s", task.name, task_id, problem)
        return None
    except (PublishError, TopologyError, SoftTimeLimitExceeded) as problem:
        return _ended(REJECTED, give_back(task, info, problem, task_id=task_id))
    return _ended(IGNORED, Ignore())


def tell(task: Any, attempt: RunState, *, has_returned: bool) -> None:
    """What became of a run: it returned, asked for a retry, or raised an error about which a decision was made."""
    switch = switch_of(task)
    decision: Decision | None = Wait(0) if attempt.is_handed_over else None if has_returned else attempt.decision
    if switch is not None and (has_returned or decision is not None):
        switch.tell(outcome_of(decision, has_policy=task.policy is not None))


def _park(task: Any, info: DeliveryInfo, *, delay_ms: int, task_id: str) -> None:
    """Publish the message as it is, with the time, confirmed; what is left is to acknowledge it."""
    context = context_of(task.app)
    there = context.wait_route(info.queue, delay_ms, wish=WaitKind.RETRY)
    with context.producer_for(there) as producer:
        headers = addressed(info.message.headers, info, queue=info.queue)
        message = info.message.with_headers({**headers, PARKED_AT: now_ms()})
        producer.publish_message(message, exchange=there.exchange, routing_key=there.routing_key)
    context.published(there)
    emit(
        Parked(
            task=task.name,
            task_id=task_id,
            queue=info.queue.name,
            delay_ms=there.length_ms,
            worker=task.request.hostname or "",
        )
    )


def _ended(state: str, error: Exception) -> Any:
    """As Celery's tracer says that a run ended with this, without one."""
    try:
        raise error
    except (Ignore, Reject):
        return trace_ok_t(ExceptionInfo(internal=True), TraceInfo(state, error), 0.0, None)
