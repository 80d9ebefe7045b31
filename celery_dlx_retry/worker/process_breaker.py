"""The circuit breakers of this process: before a task runs, they are asked; after it has, they are told."""

from __future__ import annotations

import os
from threading import Lock
from typing import TYPE_CHECKING, Any

from billiard.einfo import ExceptionInfo
from celery.app.trace import TraceInfo, trace_ok_t
from celery.exceptions import Ignore, Reject
from celery.states import IGNORED, REJECTED
from celery.utils.log import get_logger

from celery_dlx_retry.app.clock import eta_after
from celery_dlx_retry.app.context import context_of
from celery_dlx_retry.app.per_process import own, steady_ms
from celery_dlx_retry.errors import Unpublishable
from celery_dlx_retry.events import BreakerChanged, emit
from celery_dlx_retry.policy.circuit import Circuit, outcome_of
from celery_dlx_retry.policy.decision import Wait
from celery_dlx_retry.values.log_lines import escaped, log_fields
from celery_dlx_retry.worker.give_back import give_back
from celery_dlx_retry.worker.outcome import Parked
from celery_dlx_retry.worker.settle import Delivery, settle_parked

if TYPE_CHECKING:
    from celery_dlx_retry.events import Event
    from celery_dlx_retry.policy.breaker import Breaker
    from celery_dlx_retry.policy.circuit import Outcome
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
                pid=os.getpid(),
            )
        )


def breaker_of(task: Any) -> ProcessBreaker | None:
    """The task's own; None if it has no breaker."""
    breaker: Breaker | None = task.breaker
    return None if breaker is None else own(task.app, lambda: ProcessBreaker(task.name, breaker), "breaker", task.name)


def held_back(task: Any, info: DeliveryInfo, *, task_id: str) -> Any:
    """None if the message may run. If not it is parked, and this is what to tell the worker's main process."""
    breaker = breaker_of(task)
    if breaker is None or breaker.ask():
        return None
    problems: list[BaseException] = []
    delivery = Delivery(
        context=context_of(task.app),
        message=info.message,
        queue=info.queue,
        task=task.name,
        task_id=task_id,
        worker=info.worker.partition("/")[0],
        acknowledge=_leave_to_main_process,
        give_back=problems.append,
    )
    settle_parked(delivery, delay_ms=breaker.breaker.interval_ms, address=info)
    if not problems:
        info.run.outcome = Parked(eta=eta_after(task.app, breaker.breaker.interval_ms / 1000))
        return _ended(IGNORED, Ignore())
    if isinstance(problems[0], Unpublishable):
        # It would come back until the breaker closes. It runs, and is done or a dead letter.
        fields = log_fields("NotParked", task=task.name, task_id=task_id, cause=type(problems[0]).__name__)
        logger.warning("not parked, runs task=%s id=%s: %s", task.name, task_id, problems[0], extra=fields)
        return None
    return _ended(REJECTED, give_back(task, info, problems[0], task_id=task_id))


def _leave_to_main_process(_event: Event) -> None:
    """It acknowledges the message, because the run is ignored."""


def tell(task: Any, run: RunState, *, has_returned: bool) -> None:
    """What became of a run: it returned, asked for a retry, or raised an error about which a decision was made."""
    breaker = breaker_of(task)
    decision: Decision | None = Wait(0) if run.is_retried else None if has_returned else run.decision
    if breaker is not None and (has_returned or decision is not None):
        breaker.tell(outcome_of(decision, has_policy=task.policy is not None))


def _ended(state: str, error: Exception) -> Any:
    """As Celery's tracer says that a run ended with this, without one."""
    try:
        raise error
    except (Ignore, Reject):
        return trace_ok_t(ExceptionInfo(internal=True), TraceInfo(state, error), 0.0, None)
