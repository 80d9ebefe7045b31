"""The decision: wait this long, dead for this reason, or leave it to Celery."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from celery_dlx_retry.core.backoff import (
    DEAD,
    LET_FAIL,
    MAX_DELAY_MS,
    Custom,
    Delays,
    Exponential,
    Fixed,
    Linear,
    Match,
    On,
    Policy,
    PolicyLike,
    Verdict,
    as_policy,
    matches,
)
from celery_dlx_retry.core.reasons import Reason
from celery_dlx_retry.core.retry_after import hinted_delay_ms
from celery_dlx_retry.core.units import is_count, to_ms
from celery_dlx_retry.errors import DeadLetter, InvalidPolicy, RetryIn

__all__ = [
    "DEAD",
    "LET_FAIL",
    "MAX_DELAY_MS",
    "Custom",
    "Dead",
    "Decision",
    "Delays",
    "Exponential",
    "Fixed",
    "LetFail",
    "Linear",
    "Match",
    "On",
    "Policy",
    "PolicyLike",
    "Verdict",
    "Wait",
    "as_policy",
    "decide",
]


@dataclass(frozen=True, slots=True)
class Wait:
    """Retry after this long."""

    delay_ms: int
    #: The deadline: whoever makes the wait longer must not make it longer than this.
    latest_ms: int | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Dead:
    """No retry; a dead letter."""

    reason: Reason
    #: What the policy itself raised when it was asked.
    fault: Exception | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class LetFail:
    """Not ours: Celery's own failure."""


Decision: TypeAlias = Wait | Dead | LetFail


def decide(  # noqa: PLR0911, PLR0913
    policy: Policy, error: BaseException, *, attempt: int, elapsed_ms: int, chance: float, now: float
) -> Decision:
    """Decide about the attempt (1-based) that just failed with this error.

    ``elapsed_ms`` is since the first failure, ``chance`` is uniform in [0, 1), ``now`` is a Unix timestamp.
    It never raises because of a user's function: a predicate that raises does not match,
    which is logged, and a backoff that raises or returns rubbish makes the message dead, with the fault told.
    """
    if isinstance(error, DeadLetter):
        return Dead(Reason.REQUESTED)
    match _first_rule(policy, error):
        case Verdict.LET_FAIL:
            return LetFail()
        case Verdict.DEAD:
            return Dead(Reason.FAILED)
        case Policy() as own:
            return decide(own, error, attempt=attempt, elapsed_ms=elapsed_ms, chance=chance, now=now)
    if policy.retries is not None and attempt > policy.retries:
        return Dead(Reason.EXHAUSTED)
    try:
        delay_ms = _delay_ms(policy, error, attempt=attempt, chance=chance, now=now)
    except Exception as fault:  # noqa: BLE001
        return Dead(Reason.FAILED, fault)
    latest_ms = None if policy.deadline is None else to_ms(policy.deadline, what="Policy.deadline") - elapsed_ms
    if delay_ms is None or (latest_ms is not None and delay_ms > latest_ms):
        return Dead(Reason.EXHAUSTED)
    return Wait(min(delay_ms, MAX_DELAY_MS), latest_ms)


def _first_rule(policy: Policy, error: BaseException) -> Policy | Verdict | None:
    asked = isinstance(error, RetryIn)
    for rule in policy.rules:
        # The task asked for a retry in so many words: a catch-all On(Exception, DEAD) does not mean that.
        if not (asked and isinstance(rule.then, Verdict)) and matches(rule.match, error):
            return rule.then
    return None if asked or matches(policy.errors, error) else DEAD


def _delay_ms(policy: Policy, error: BaseException, *, attempt: int, chance: float, now: float) -> int | None:
    hint_ms = _hint_ms(policy, error, now=now)
    if hint_ms is not None:
        return hint_ms
    delay_ms = policy.delay_ms(attempt, error)
    if delay_ms is None:
        return None
    if not is_count(delay_ms):  # a user's own subclass
        raise InvalidPolicy(what="delay_ms()", value=delay_ms, wanted="whole milliseconds, or None")
    return delay_ms if policy.jitter is None else policy.jitter.apply(delay_ms, chance)


def _hint_ms(policy: Policy, error: BaseException, *, now: float) -> int | None:
    # RetryIn is the task's own word, heard even where servers' hints are not; the cap holds for both.
    if policy.retry_after is None and not isinstance(error, RetryIn):
        return None
    hint_ms = hinted_delay_ms(error, now=now)
    if hint_ms is None or policy.retry_after is None:
        return hint_ms
    return min(hint_ms, to_ms(policy.retry_after, what="Policy.retry_after"))
