"""Retry budgets as values: how many retries all tasks together may have, and what happens to the others."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from fractions import Fraction
from typing import Final, Literal, TypeAlias

from celery_dlx_retry.errors import InvalidPolicy
from celery_dlx_retry.policy.decision import Dead, Decision, Wait
from celery_dlx_retry.policy.policies import DEAD, MAX_DELAY_MS, Verdict
from celery_dlx_retry.policy.reasons import Reason
from celery_dlx_retry.values.durations import Seconds, as_fraction, is_count, is_number, to_ms

_MINUTE_MS: Final = 60_000


@dataclass(frozen=True, slots=True, repr=False)
class Budget:
    """A policy limits the retries of one message; a budget limits the retries of all tasks together.

    - ``share``: what each first attempt pays in. With 0.2, five of them pay for one retry.
    - ``per_minute``: retries that are added each minute. You can set ``share``, ``per_minute`` or both.
    - ``reserve``: the most retries that can be saved up. The budget starts with so many.
    - ``over``: what happens to a retry over budget: DEAD, or it waits at least so many seconds.
    """

    share: float | None = None
    per_minute: float | None = field(default=None, kw_only=True)
    reserve: int = field(default=10, kw_only=True)
    over: Seconds | Literal[Verdict.DEAD] = field(default=DEAD, kw_only=True)

    def __post_init__(self) -> None:
        if self.share is None and self.per_minute is None:
            raise InvalidPolicy(what="Budget.share", value=None, wanted="a number above 0, unless you set per_minute")
        for name in ("share", "per_minute"):
            value = getattr(self, name)
            if value is not None and not (is_number(value) and value > 0):
                raise InvalidPolicy(what=f"Budget.{name}", value=value, wanted="a number above 0, or None")
        if not is_count(self.reserve) or self.reserve < 1:
            raise InvalidPolicy(what="Budget.reserve", value=self.reserve, wanted="a whole number from 1 on")
        if self.over is not DEAD and not 0 < to_ms(self.over, what="Budget.over") <= MAX_DELAY_MS:
            raise InvalidPolicy(what="Budget.over", value=self.over, wanted="DEAD, or above 0 and up to ten years")

    def known_delays_ms(self) -> frozenset[int]:
        """Return the delay of retries over budget, so that a worker can make the lane for it."""
        return frozenset() if self.over is DEAD else frozenset((to_ms(self.over, what="Budget.over"),))

    def open(self, *, now_ms: int) -> Account:
        """Return a full account."""
        return Account(budget=self, balance=Fraction(self.reserve), at_ms=now_ms)

    def __repr__(self) -> str:
        given = (it for it in fields(self) if getattr(self, it.name) != it.default)
        arguments = (f"{it.name}={getattr(self, it.name)!r}" if it.kw_only else repr(self.share) for it in given)
        return f"Budget({', '.join(arguments)})"


BudgetLike: TypeAlias = Budget | float


def as_budget(value: BudgetLike) -> Budget:
    """Return a budget as it is, and a number as the budget with this share."""
    if isinstance(value, Budget):
        return value
    if is_number(value):
        return Budget(value)
    raise InvalidPolicy(what="budget", value=value, wanted="a Budget, or a share: a number above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """What is left of a budget. ``now_ms`` is from a monotonic clock.

    The balance is a fraction, because ten times 0.1 must be one retry.
    """

    budget: Budget
    balance: Fraction
    at_ms: int

    @property
    def remaining(self) -> float:
        """The part of the reserve that is left, from 0 to 1."""
        return float(self.balance / self.budget.reserve)

    @property
    def tenths(self) -> int:
        """How many tenths of the reserve are left; full ones only."""
        return 10 * self.balance.numerator // (self.balance.denominator * self.budget.reserve)

    def after_first_attempt(self, *, now_ms: int) -> Account:
        """Return the account after a first attempt has paid in."""
        share = self.budget.share
        return self._at(now_ms)._with(Fraction(0) if share is None else as_fraction(share))  # noqa: SLF001 - our own

    def after_retry(self, *, now_ms: int) -> tuple[Account, bool]:
        """Return the account after a retry was asked for, and whether the budget pays for it."""
        account = self._at(now_ms)
        if account.balance < 1:
            return account, False
        return account._with(Fraction(-1)), True  # noqa: SLF001 - our own

    def after_refund(self) -> Account:
        """Return the account after a retry that was paid for did not take place."""
        return self._with(Fraction(1))

    def _at(self, now_ms: int) -> Account:
        rate = self.budget.per_minute
        passed_ms = max(0, now_ms - self.at_ms)
        income = Fraction(0) if rate is None else as_fraction(rate) * passed_ms / _MINUTE_MS
        return replace(self._with(income), at_ms=self.at_ms + passed_ms)

    def _with(self, amount: Fraction) -> Account:
        return replace(self, balance=min(self.balance + amount, Fraction(self.budget.reserve)))


def over_budget(budget: Budget | None, wait: Wait) -> Decision:
    """Decide about a retry that exceeds the budget, or that a full lane refused (then ``budget`` may be None)."""
    if budget is None or budget.over is DEAD:
        return Dead(Reason.BUDGET)
    delay_ms = max(wait.delay_ms, to_ms(budget.over, what="Budget.over"))
    if wait.latest_ms is not None and delay_ms > wait.latest_ms:
        return Dead(Reason.BUDGET)
    return replace(wait, delay_ms=delay_ms)
