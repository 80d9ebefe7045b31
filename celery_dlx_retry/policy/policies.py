"""Policies as values: which errors are retried, and after which delays."""

from __future__ import annotations

import inspect
import logging
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field, fields
from datetime import timedelta
from decimal import ROUND_CEILING, Context
from enum import Enum
from typing import Any, Final, TypeAlias

from celery_dlx_retry.errors import InvalidDelay, InvalidPolicy
from celery_dlx_retry.policy.jitter import FullJitter, Jitter, ProportionalJitter
from celery_dlx_retry.values.durations import Seconds, as_fraction, is_count, is_number, to_ms
from celery_dlx_retry.values.log_lines import escaped, log_fields

logger = escaped(logging.getLogger(__name__))

MAX_DELAY_MS: Final = 315_360_000_000
"""Ten years. An unlimited backoff grows up to here and no further."""

KNOWN_RETRIES: Final = 64
"""How many retries ``known_delays_ms`` looks ahead: each new delay is a queue on the broker."""

Match: TypeAlias = type[BaseException] | tuple[type[BaseException], ...] | Callable[[Any], bool]
"""Which errors: a class, a tuple of classes, or a predicate."""

DelayFunction: TypeAlias = Callable[[int, Any], Seconds | None]


class Verdict(Enum):
    """What a rule may have in place of a policy."""

    DEAD = "dead"
    LET_FAIL = "let-fail"

    def __repr__(self) -> str:
        return self.name


DEAD: Final = Verdict.DEAD
"""Do not retry; make a dead letter now."""

LET_FAIL: Final = Verdict.LET_FAIL
"""Leave the failure to Celery: no retry and no dead letter."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Policy(ABC):
    """What every policy has; the subclasses add the backoff.

    - ``retries``: how many retries after the first attempt; ``None``: no limit.
    - ``jitter``: applied to the backoff, after its limit.
    - ``deadline``: counted from the first failure; no retry starts later.
    - ``rules``: the first ``On`` that matches the error decides instead of this policy, and counts its own retries.
    - ``errors``: the errors that are retried. Any other makes a dead letter.
    - ``retry_after``: the longest wait that an error may ask for; ``None`` ignores what servers ask for.
    """

    retries: int | None = 3
    jitter: Jitter | None = None
    deadline: Seconds | None = None
    rules: Sequence[On] = ()
    errors: Match = Exception
    retry_after: Seconds | None = 3600

    def __post_init__(self) -> None:
        is_limit = self.retries is None or is_count(self.retries)
        _require(is_limit, self, "retries", "a whole number from 0 on, or None for ever")
        is_jitter = self.jitter is None or isinstance(self.jitter, (FullJitter, ProportionalJitter))
        _require(is_jitter, self, "jitter", "FullJitter(), ProportionalJitter() or None")
        if self.deadline is not None:
            _require(_ms(self, "deadline") > 0, self, "deadline", "longer than 0, or None")
        if self.retry_after is not None:
            _ms(self, "retry_after")
        _require(_is_match(self.errors), self, "errors", _A_MATCH)
        are_rules = _is_sequence(self.rules) and all(isinstance(rule, On) for rule in self.rules)
        _require(are_rules, self, "rules", "a sequence of On(...)")
        object.__setattr__(self, "rules", tuple(self.rules))

    @abstractmethod
    def delay_ms(self, retry: int, error: BaseException) -> int | None:
        """Return the wait before this retry (1-based), without jitter; ``None`` for no more retries."""

    def known_delays_ms(self) -> frozenset[int]:
        """Return all delays that can be known in advance, so that a worker can make their lanes."""
        thens = (rule.then for rule in self.rules)
        return frozenset[int]().union(*(then.known_delays_ms() for then in thens if isinstance(then, Policy)))

    def within(self, longest_ms: int) -> Policy:
        """Return the same policy with this limit for every growing backoff that has none."""
        policy = copy(self)
        object.__setattr__(policy, "rules", tuple(rule.within(longest_ms) for rule in self.rules))
        if isinstance(self, (Linear, Exponential)) and self.limit is None:
            top_ms = longest_ms if self.jitter is None else self.jitter.longest_within(longest_ms)
            # A longer start was written explicitly: the worker refuses it.
            limit_ms = min(max(top_ms, _ms(self, "start")), MAX_DELAY_MS)
            object.__setattr__(policy, "limit", timedelta(milliseconds=limit_ms))
        return policy

    def __repr__(self) -> str:
        # As a user would write it: the backoff first, then the common fields that are not the default.
        shown = sorted(fields(self), key=lambda each: each.name in _COMMON)
        values = ((each, getattr(self, each.name)) for each in shown)
        arguments = (
            f"{each.name}={show(value)}" if each.kw_only else show(value)
            for each, value in values
            if not (each.kw_only and value == each.default)
        )
        return f"{type(self).__name__}({', '.join(arguments)})"


_COMMON: Final = frozenset(each.name for each in fields(Policy))


class Foreseeable(Policy):
    """A policy whose delay depends only on the retry: without jitter, a worker can make the lanes at its start."""

    __slots__ = ()

    @abstractmethod
    def asked_ms(self, retry: int) -> int:
        """Return ``delay_ms()`` without the cap of ten years, so that a worker reports a delay that is too long."""

    def delay_ms(self, retry: int, error: BaseException) -> int | None:  # noqa: ARG002
        """See ``Policy``."""
        return min(self.asked_ms(retry), MAX_DELAY_MS)

    def known_delays_ms(self) -> frozenset[int]:
        """See ``Policy``."""
        known = Policy.known_delays_ms(self)
        if self.jitter is not None:
            return known
        retries = KNOWN_RETRIES if self.retries is None else min(self.retries, KNOWN_RETRIES)
        longest = None if self.deadline is None else _ms(self, "deadline")
        delays = map(self.asked_ms, range(1, retries + 1))
        return known.union(it for it in delays if longest is None or it <= longest)


# super() without arguments fails in these classes: slots=True makes a second class, and super() means the first.


@dataclass(frozen=True, slots=True, repr=False)
class Fixed(Foreseeable):
    """The same delay before every retry."""

    delay: Seconds

    def __post_init__(self) -> None:
        Policy.__post_init__(self)
        _ms(self, "delay")

    def asked_ms(self, retry: int) -> int:  # noqa: ARG002
        """See ``Foreseeable``."""
        return _ms(self, "delay")


@dataclass(frozen=True, slots=True, repr=False)
class Linear(Foreseeable):
    """``start``, then ``step`` more each time, up to ``limit``. Without ``step`` it grows by ``start``."""

    start: Seconds
    step: Seconds | None = field(default=None, kw_only=True)
    limit: Seconds | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        Policy.__post_init__(self)
        if self.step is not None:
            _ms(self, "step")
        _check_limit(self)

    def asked_ms(self, retry: int) -> int:
        """See ``Foreseeable``."""
        step_ms = _ms(self, "start" if self.step is None else "step")
        return min(_ms(self, "start") + (retry - 1) * step_ms, _limit_ms(self))


@dataclass(frozen=True, slots=True, repr=False)
class Exponential(Foreseeable):
    """``start``, then ``factor`` times as much each time, up to ``limit``. Use it for overloaded services."""

    start: Seconds
    factor: float = field(default=2, kw_only=True)
    limit: Seconds | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        Policy.__post_init__(self)
        _require(is_number(self.factor) and self.factor >= 1, self, "factor", "a number from 1 on")
        _check_limit(self)

    def asked_ms(self, retry: int) -> int:
        """See ``Foreseeable``."""
        start_ms, limit_ms = _ms(self, "start"), _limit_ms(self)
        if start_ms == 0:
            return 0  # not 0 * Infinity
        if type(self.factor) is int and 1 <= retry <= _FEW_RETRIES:
            delay_ms: int = start_ms * self.factor ** (retry - 1)  # most policies; faster than decimals
            return min(delay_ms, limit_ms)
        factor = as_fraction(self.factor)
        growth = _DECIMAL.power(_DECIMAL.divide(factor.numerator, factor.denominator), retry - 1)
        delay = _DECIMAL.multiply(start_ms, growth)
        return limit_ms if delay >= limit_ms else int(delay.to_integral_value(ROUND_CEILING))


_FEW_RETRIES: Final = 64

# Exact for every delay below ten years. The hundred-thousandth power is Infinity, quickly, and no OverflowError.
_DECIMAL: Final = Context(prec=100, traps=[])

# The default of Delays.retries: len(delays) is not known yet, and None means no limit.
_AS_MANY: Final[Any] = type("_AsMany", (), {"__repr__": lambda _self: "len(delays)"})()


@dataclass(frozen=True, slots=True, repr=False)
class Delays(Foreseeable):
    """These delays, one after the other, and no more retries. If you set more ``retries``, the last delay repeats."""

    delays: Sequence[Seconds]
    retries: int | None = field(default=_AS_MANY, kw_only=True)

    def __post_init__(self) -> None:
        _require(_is_sequence(self.delays) and len(self.delays) > 0, self, "delays", "a list of at least one delay")
        object.__setattr__(self, "delays", tuple(self.delays))
        for position, delay in enumerate(self.delays):
            to_ms(delay, what=f"Delays.delays[{position}]")
        if self.retries is _AS_MANY:
            object.__setattr__(self, "retries", len(self.delays))
        Policy.__post_init__(self)

    def asked_ms(self, retry: int) -> int:
        """See ``Foreseeable``."""
        position = min(retry, len(self.delays)) - 1
        return to_ms(self.delays[position], what="Delays.delays")


@dataclass(frozen=True, slots=True, repr=False)
class Custom(Policy):
    """``function(retry, error)`` returns the seconds, or ``None`` for no more retries. ``retries`` still applies.

    Prefer a rule where one is enough: a worker does not know the delays of a function in advance, and rounds them up to
    the grid of lanes.
    """

    function: DelayFunction

    def __post_init__(self) -> None:
        Policy.__post_init__(self)
        is_right = _is_function(self.function) and _takes(self.function, 1, Exception())
        _require(is_right, self, "function", "a function of (retry, error)")

    def delay_ms(self, retry: int, error: BaseException) -> int | None:
        """See ``Policy``. Raise what the function raises, and InvalidDelay if it returns no valid delay."""
        delay = self.function(retry, error)
        return None if delay is None else min(to_ms(delay, what=f"{self!r}'s delay"), MAX_DELAY_MS)


PolicyLike: TypeAlias = Policy | Seconds | Sequence[Seconds] | DelayFunction


def as_policy(value: PolicyLike) -> Policy:
    """Return a policy as it is, one delay as Fixed, a list or tuple of delays as Delays, a function as Custom."""
    if isinstance(value, Policy):
        return value
    if isinstance(value, (int, float, timedelta)) and not isinstance(value, bool):
        return _named_by_what_was_written(Fixed, value)
    if isinstance(value, (list, tuple)):
        return _named_by_what_was_written(Delays, value)
    if _is_function(value):
        return _named_by_what_was_written(Custom, value)
    raise InvalidPolicy(what="policy", value=value, wanted="a policy, seconds, a list of seconds or a function")


def _named_by_what_was_written(policy: Callable[[Any], Policy], value: Any) -> Policy:
    """Make the policy; an error names ``policy``, as the user wrote it, and not ``Fixed.delay``."""
    try:
        return policy(value)
    except (InvalidDelay, InvalidPolicy) as problem:
        what = _SHORTHAND.sub("policy", problem.what)
        raise type(problem)(**{**problem.facts, "what": what}) from problem


_SHORTHAND: Final = re.compile(r"^\w+\.(delays?|function)")


@dataclass(frozen=True, slots=True, repr=False, init=False)
class On:
    """A rule: for errors that match, ``then`` is a policy (or what ``as_policy`` takes), DEAD, or LET_FAIL."""

    match: Match
    then: Policy | Verdict

    def __init__(self, match: Match, then: PolicyLike | Verdict) -> None:
        object.__setattr__(self, "match", match)
        object.__setattr__(self, "then", then if isinstance(then, Verdict) else as_policy(then))
        _require(_is_match(match), self, "match", _A_MATCH)

    def within(self, longest_ms: int) -> On:
        """See ``Policy``."""
        return On(self.match, self.then.within(longest_ms)) if isinstance(self.then, Policy) else self

    def __repr__(self) -> str:
        return f"On({show(self.match)}, {self.then!r})"


def matches(match: Match, error: BaseException) -> bool:
    """Return whether the error matches. A predicate that raises does not match: its fault must not cost the message."""
    try:
        if isinstance(match, (type, tuple)):
            return isinstance(error, match)
        return bool(match(error))
    except Exception:
        kind = type(error).__name__
        fields = log_fields("PredicateFailed", error_type=kind)
        logger.warning("predicate failed match=%r error=%s", match, kind, exc_info=True, extra=fields)
        return False


_A_MATCH: Final = "an exception class, a tuple of them, or a predicate"


def _require(fine: object, owner: object, name: str, wanted: str) -> None:
    if not fine:
        raise InvalidPolicy(what=f"{type(owner).__name__}.{name}", value=getattr(owner, name), wanted=wanted)


def _ms(owner: Policy, name: str) -> int:
    return to_ms(getattr(owner, name), what=f"{type(owner).__name__}.{name}")


def _limit_ms(owner: Linear | Exponential) -> int:
    return MAX_DELAY_MS if owner.limit is None else min(_ms(owner, "limit"), MAX_DELAY_MS)


def _check_limit(owner: Linear | Exponential) -> None:
    start_ms = _ms(owner, "start")
    if owner.limit is not None:
        _require(_ms(owner, "limit") >= start_ms, owner, "limit", f"at least the start, {owner.start!r}")


def _is_sequence(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes))


def _is_function(value: object) -> bool:
    # A class is callable, too, but as_policy(ValueError) is a mistake.
    return callable(value) and not isinstance(value, type)


def _takes(function: Callable[..., Any], *arguments: object) -> bool:
    """Return whether it takes these arguments; True for functions without a signature, as some of C have none."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return True
    try:
        signature.bind(*arguments)
    except TypeError:
        return False
    return True


def _is_match(value: object) -> bool:
    if isinstance(value, tuple):
        return all(isinstance(each, type) and issubclass(each, BaseException) for each in value)
    if isinstance(value, type):
        return issubclass(value, BaseException)
    return callable(value) and _takes(value, Exception())


def show(value: object) -> str:
    """Return it as in a program: a class or a function by its name."""
    if isinstance(value, tuple):
        return f"({', '.join(map(show, value))}{',' if len(value) == 1 else ''})"
    name = getattr(value, "__qualname__", None)
    return name if isinstance(name, str) else repr(value)
