"""Decide about a failed attempt: wait and retry, make a dead letter, or leave the failure to Celery."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeAlias

from celery_dlx_retry.errors import DeadLetter, DLXError, InvalidPolicy, RetryIn
from celery_dlx_retry.policy.policies import DEAD, MAX_DELAY_MS, Policy, Verdict, matches, show
from celery_dlx_retry.policy.reasons import Reason
from celery_dlx_retry.policy.retry_after import hinted_delay_ms
from celery_dlx_retry.policy.rule_retries import RuleRetry
from celery_dlx_retry.values.durations import is_count, to_ms

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Wait:
    """Retry after this long."""

    delay_ms: int
    #: The policy's deadline: a budget must not extend the wait past it.
    latest_ms: int | None = field(default=None, compare=False, repr=False)
    #: The rule that granted it; None if the policy itself did.
    rule: RuleRetry | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Dead:
    """Make a dead letter."""

    reason: Reason
    #: The error that the policy itself raised.
    fault: Exception | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class LetFail:
    """Leave the failure to Celery: no retry and no dead letter."""


Decision: TypeAlias = Wait | Dead | LetFail

_NO_RETRIES: Final[Mapping[str, int]] = MappingProxyType({})


class Asked(RetryIn):
    """Replaces the error if the task called ``self.retry()`` without one. The policy chooses the delay."""

    def __init__(self) -> None:
        DLXError.__init__(self, seconds=None, detail="the task asked for a retry")

    def __reduce__(self) -> tuple[type[Asked], tuple[()]]:
        return type(self), ()


def decide(  # noqa: PLR0913
    policy: Policy,
    error: BaseException,
    *,
    attempt: int,
    elapsed_ms: int,
    chance: float,
    now: float,
    rule_retries: Mapping[str, int] | None = _NO_RETRIES,
) -> Decision:
    """Decide about the attempt (1-based) that just failed with this error.

    ``elapsed_ms`` is since the first failure, ``chance`` is uniform in [0, 1), ``now`` is a Unix timestamp.
    ``rule_retries`` are the retries that each rule has granted so far; all others are the policy's own.
    If they are not known (None), every rule counts all attempts.
    A user's function never makes it raise. A predicate that raises does not match, and a log line reports it. A backoff
    that raises or returns an invalid delay gives Dead, and the decision carries the fault.
    """
    if isinstance(error, DeadLetter):
        return Dead(Reason.REQUESTED)
    applied, path, name = _applied(policy, error)
    if isinstance(applied, Verdict):
        return Dead(Reason.FAILED) if applied is DEAD else LetFail()
    policy, retry = applied, _retry_of(path, attempt=attempt, rule_retries=rule_retries)
    if policy.retries is not None and retry > policy.retries:
        return Dead(Reason.EXHAUSTED)
    try:
        delay_ms = _delay_ms(policy, error, retry=retry, chance=chance, now=now)
    except Exception as fault:  # noqa: BLE001
        return Dead(Reason.FAILED, fault)
    latest_ms = None if policy.deadline is None else to_ms(policy.deadline, what="Policy.deadline") - elapsed_ms
    if delay_ms is None or (latest_ms is not None and delay_ms > latest_ms):
        return Dead(Reason.EXHAUSTED)
    rule = RuleRetry(path=path, name=name, retry=retry) if path else None
    return Wait(min(delay_ms, MAX_DELAY_MS), latest_ms, rule)


def decide_without_policy(error: BaseException, *, attempt: int, max_retries: int | None) -> Decision:
    """Decide by Celery's options alone: only ``RetryIn`` is retried, within ``max_retries``."""
    if not isinstance(error, RetryIn):
        return Dead(Reason.FAILED)
    if max_retries is not None and attempt > max_retries:
        return Dead(Reason.EXHAUSTED)
    return Wait(min(to_ms(error.seconds, what="RetryIn.seconds"), MAX_DELAY_MS))


def _applied(policy: Policy, error: BaseException) -> tuple[Policy | Verdict, str, str]:
    """Return the policy or verdict for this error; if a rule has it, also the path and the name of the rule."""
    asked = isinstance(error, RetryIn)
    for position, rule in enumerate(policy.rules):
        # RetryIn asks for a retry explicitly: a catch-all On(Exception, DEAD) does not mean that.
        if (asked and isinstance(rule.then, Verdict)) or not matches(rule.match, error):
            continue
        if isinstance(rule.then, Verdict):
            return rule.then, "", ""
        applied, path, name = _applied(rule.then, error)
        return applied, f"{position}.{path}" if path else str(position), name or show(rule.match)
    return (policy if asked or matches(policy.errors, error) else DEAD), "", ""


def _retry_of(path: str, *, attempt: int, rule_retries: Mapping[str, int] | None) -> int:
    """Return which retry (1-based) the next one is for the rule of this path, or for the policy itself."""
    if rule_retries is None:
        return attempt
    if path:
        return rule_retries.get(path, 0) + 1
    return max(1, attempt - sum(rule_retries.values()))


def _delay_ms(policy: Policy, error: BaseException, *, retry: int, chance: float, now: float) -> int | None:
    hint_ms = _hint_ms(policy, error, now=now)
    if hint_ms is not None:
        return hint_ms
    delay_ms = policy.delay_ms(retry, error)
    if delay_ms is None:
        return None
    if not is_count(delay_ms):  # a user's own subclass
        raise InvalidPolicy(what="delay_ms()", value=delay_ms, wanted="whole milliseconds, or None")
    return delay_ms if policy.jitter is None else policy.jitter.apply(delay_ms, chance)


def _hint_ms(policy: Policy, error: BaseException, *, now: float) -> int | None:
    # A policy that ignores the hints of servers still obeys RetryIn. Its cap applies to both.
    if policy.retry_after is None and not isinstance(error, RetryIn):
        return None
    hint_ms = hinted_delay_ms(error, now=now)
    if hint_ms is None or policy.retry_after is None:
        return hint_ms
    return min(hint_ms, to_ms(policy.retry_after, what="Policy.retry_after"))
