"""The retry budget of this process: who pays in, who draws, and what becomes of a retry beyond it."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Any

from celery.exceptions import Reject, Retry

from celery_dlx_retry.app.context import context_of
from celery_dlx_retry.app.per_process import own, steady_ms
from celery_dlx_retry.errors import DLXError, Nacked, RetryNotPublished
from celery_dlx_retry.policy.budget import over_budget
from celery_dlx_retry.policy.decision import Dead, Wait
from celery_dlx_retry.policy.reasons import Reason

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_dlx_retry.policy.budget import Budget
    from celery_dlx_retry.policy.decision import Decision
    from celery_dlx_retry.worker.run_state import RunState


class ProcessBudget:
    """An account that all threads of this process share."""

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self._lock = Lock()
        self._account = budget.open(now_ms=steady_ms())

    def pay_in(self) -> None:
        """For a first attempt."""
        with self._lock:
            self._account = self._account.after_first_attempt(now_ms=steady_ms())

    def draw(self) -> bool:
        """For a retry; False if there is not enough."""
        with self._lock:
            self._account, is_paid = self._account.after_retry(now_ms=steady_ms())
        return is_paid

    def give_back(self) -> None:
        """For a retry that was not made after all."""
        with self._lock:
            self._account = self._account.after_refund()


def purse_of(task: Any) -> ProcessBudget | None:
    """The task's own, or the one that it shares with the other tasks of its app; None if there is no limit."""
    budget: Budget | None = task.budget
    if budget is not None:
        return own(task.app, lambda: ProcessBudget(budget), "purse", task.name)
    shared = context_of(task.app).settings.budget
    return None if shared is None else own(task.app, lambda: ProcessBudget(shared), "purse")


def pay_in(task: Any, *, retries: Any) -> None:
    """Whatever runs for the first time pays for the retries of all."""
    if not retries and (purse := purse_of(task)) is not None:
        purse.pay_in()


def retry_within(task: Any, attempt: RunState, ask: Callable[..., Any], wait: Wait, when: dict[str, Any]) -> Any:
    """Ask Celery for a retry as the budget lets it have one. Beyond it there is none: as if none were left."""
    purse = purse_of(task)
    if purse is None or purse.draw():
        try:
            return _ask(task, attempt, ask, wait, when)
        except (Reject, DLXError):
            if purse is not None:
                purse.give_back()  # it could not be published, and will be asked for again
            raise
    decision = over_budget(purse.budget, wait)
    return _ask(task, attempt, ask, decision, _when(decision, when))


def charged(task: Any, wait: Wait) -> Decision:
    """The same decision where Celery is not asked: the wait if it is paid for, and what the budget says if not."""
    purse = purse_of(task)
    return wait if purse is None or purse.draw() else over_budget(purse.budget, wait)


def refused(task: Any, wait: Wait, problem: Any) -> Decision | None:
    """What becomes of a retry whose lane did not take it; None if the budget has no say in that."""
    if not isinstance(problem, Nacked) or context_of(task.app).settings.max_waiting is None:
        return None
    purse = purse_of(task)
    decision = over_budget(None if purse is None else purse.budget, wait)
    # A lane that is just as full.
    return Dead(Reason.BUDGET) if decision == wait else decision


def _ask(task: Any, attempt: RunState, ask: Callable[..., Any], decision: Decision, when: dict[str, Any]) -> Any:
    if not isinstance(decision, Wait):
        attempt.decision = decision
        return ask(**{**when, "max_retries": task.request.retries})
    try:
        return _handed_over(task, attempt, ask, when)
    except Reject as reject:
        other = refused(task, decision, reject.reason)
        if other is None:
            raise
    return _ask(task, attempt, ask, other, _when(other, when))


def _handed_over(task: Any, attempt: RunState, ask: Callable[..., Any], when: dict[str, Any]) -> Any:
    """Celery's Retry says that the message waits somewhere, and is acknowledged for that; so it had better wait.

    An eager one is run again by whoever runs it.
    """
    try:
        result = ask(**when)
    except Retry as retry:
        if attempt.is_handed_over or task.request.is_eager:
            raise
        raise RetryNotPublished(task=task.name) from retry
    if attempt.is_handed_over or task.request.is_eager:
        return result
    raise RetryNotPublished(task=task.name)


def _when(decision: Decision, when: dict[str, Any]) -> dict[str, Any]:
    return {**when, "countdown": decision.delay_ms / 1000, "eta": None} if isinstance(decision, Wait) else when
