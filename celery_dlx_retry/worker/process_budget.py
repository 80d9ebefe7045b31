"""The retry budget of this process: who pays in, who draws, and what becomes of a retry beyond it."""

from __future__ import annotations

import os
from threading import Lock
from typing import TYPE_CHECKING, Any

from celery_dlx_retry.app.context import context_of
from celery_dlx_retry.app.per_process import own, steady_ms
from celery_dlx_retry.errors import Nacked
from celery_dlx_retry.events import BudgetChanged, emit
from celery_dlx_retry.policy.budget import over_budget
from celery_dlx_retry.policy.decision import Dead, Wait
from celery_dlx_retry.policy.reasons import Reason

if TYPE_CHECKING:
    from celery_dlx_retry.policy.budget import Budget
    from celery_dlx_retry.policy.decision import Decision


class ProcessBudget:
    """An account that all threads of this process share."""

    def __init__(self, budget: Budget, *, task: str = "") -> None:
        self.budget = budget
        self._task = task
        self._lock = Lock()
        self._account = budget.open(now_ms=steady_ms())
        self._tenths = self._account.tenths

    def pay_in(self) -> None:
        """For a first attempt."""
        with self._lock:
            self._account = self._account.after_first_attempt(now_ms=steady_ms())
        self._emit()

    def draw(self) -> bool:
        """For a retry; False if there is not enough."""
        with self._lock:
            self._account, is_paid = self._account.after_retry(now_ms=steady_ms())
        self._emit()
        return is_paid

    def give_back(self) -> None:
        """For a retry that was not made after all."""
        with self._lock:
            self._account = self._account.after_refund()
        self._emit()

    def _emit(self) -> None:
        account = self._account
        if (tenths := account.tenths) != self._tenths:
            self._tenths = tenths
            emit(BudgetChanged(task=self._task, remaining=account.remaining, pid=os.getpid()))


def budget_of(task: Any) -> ProcessBudget | None:
    """The task's own, or the one that it shares with the other tasks of its app; None if there is no limit."""
    budget: Budget | None = task.budget
    if budget is not None:
        return own(task.app, lambda: ProcessBudget(budget, task=task.name), "account", task.name)
    shared = context_of(task.app).settings.budget
    return None if shared is None else own(task.app, lambda: ProcessBudget(shared), "account")


def pay_in(task: Any) -> None:
    """Pay for retries: every first attempt does."""
    if (account := budget_of(task)) is not None:
        account.pay_in()


def charged(task: Any, wait: Wait) -> Decision:
    """The same decision where Celery is not asked: the wait if it is paid for, and what the budget says if not."""
    account = budget_of(task)
    return wait if account is None or account.draw() else over_budget(account.budget, wait)


def refused(task: Any, wait: Wait, problem: Any) -> Decision | None:
    """What becomes of a retry whose lane did not take it; None if the budget has no say in that."""
    if not isinstance(problem, Nacked) or context_of(task.app).settings.max_waiting is None:
        return None
    account = budget_of(task)
    decision = over_budget(None if account is None else account.budget, wait)
    # A lane that is just as full.
    return Dead(Reason.BUDGET) if decision == wait else decision
