"""Circuit breakers as values: when a task is not run any more, when it is tried again, and how the flow returns."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum

from celery_dlx_retry.errors import InvalidPolicy
from celery_dlx_retry.policy.decision import Dead, Decision, Wait
from celery_dlx_retry.policy.policies import MAX_DELAY_MS
from celery_dlx_retry.policy.reasons import Reason
from celery_dlx_retry.values.durations import Seconds, is_count, to_ms

# Of an interval.
_PARTS = 4


@dataclass(frozen=True, slots=True)
class Breaker:
    """Stop running a task that fails every time: its messages are parked in a lane, and now and then one is tried.

    - ``after``: so many failures in a row open it.
    - ``probe_every``: open, it lets one through in this time, and parks the others for as long. Once one has
      succeeded, it lets 2 through in this time, then 4, 8 and so on, until it holds nobody back; a quarter of them in
      each quarter of the time.
    """

    after: int = 5
    probe_every: Seconds = field(default=30, kw_only=True)

    def __post_init__(self) -> None:
        if not is_count(self.after) or self.after < 1:
            raise InvalidPolicy(what="Breaker.after", value=self.after, wanted="a whole number from 1 on")
        if not 0 < self.interval_ms <= MAX_DELAY_MS:
            raise InvalidPolicy(what="Breaker.probe_every", value=self.probe_every, wanted="above 0, up to ten years")

    @property
    def interval_ms(self) -> int:
        """``probe_every``, in whole milliseconds."""
        return to_ms(self.probe_every, what="Breaker.probe_every")

    def known_delays_ms(self) -> frozenset[int]:
        """The delay that it asks for, so that it can have a lane of its own."""
        return frozenset((self.interval_ms,))


class Outcome(Enum):
    """What a run says about the thing that the task needs."""

    SUCCESS = "success"
    FAILURE = "failure"
    NEITHER = "neither"


def outcome_of(decision: Decision | None, *, has_policy: bool) -> Outcome:
    """Of a run: None if it returned, else what was decided about its error.

    What a retry could have helped is a failure. What the task or its policy gives up at once is about the message.
    """
    match decision:
        case None:
            return Outcome.SUCCESS
        case Wait() | Dead(Reason.EXHAUSTED | Reason.BUDGET):
            return Outcome.FAILURE
        case Dead(Reason.FAILED) if not has_policy:
            return Outcome.FAILURE
    return Outcome.NEITHER


@dataclass(frozen=True, slots=True, kw_only=True)
class Circuit:
    """A breaker's state. ``now_ms`` is of any steady clock."""

    breaker: Breaker
    #: In a row, while it is closed.
    failures: int = 0
    #: How many may run in this interval: None is closed, and all; 1 is open, and a probe; more is on the way back.
    quota: int | None = None
    started: int = 0
    parked: int = 0
    has_succeeded: bool = False
    since_ms: int = 0

    def admit(self, *, now_ms: int) -> tuple[Circuit, bool]:
        """The state after a message asked to be run, and whether it may."""
        circuit = self._at(now_ms)
        if circuit.quota is None:
            return circuit, True
        if circuit.started < _so_far(circuit.quota, now_ms - circuit.since_ms, circuit.breaker.interval_ms):
            return replace(circuit, started=circuit.started + 1), True
        return replace(circuit, parked=circuit.parked + 1), False

    def record(self, outcome: Outcome, *, now_ms: int) -> Circuit:
        """The state after a run."""
        if outcome is Outcome.SUCCESS:
            return self._succeeded(now_ms)
        return self._failed(now_ms) if outcome is Outcome.FAILURE else self

    def _at(self, now_ms: int) -> Circuit:
        """Begin a new interval when the last one is over."""
        if self.quota is None or now_ms - self.since_ms < self.breaker.interval_ms:
            return self
        if self.quota == 1 or (self.started and not self.has_succeeded):
            return self._interval(self.quota, now_ms)  # nothing new is known
        if not self.parked:
            return Circuit(breaker=self.breaker)
        return self._interval(2 * self.quota, now_ms)

    def _succeeded(self, now_ms: int) -> Circuit:
        if self.quota is None:
            return replace(self, failures=0)
        if self.quota == 1:
            return self._interval(2, now_ms)
        return replace(self, has_succeeded=True)

    def _failed(self, now_ms: int) -> Circuit:
        if self.quota == 1:
            return self
        if self.quota is None and self.failures + 1 < self.breaker.after:
            return replace(self, failures=self.failures + 1)
        return replace(self._interval(1, now_ms), started=1)  # its probe was this one

    def _interval(self, quota: int, now_ms: int) -> Circuit:
        return Circuit(breaker=self.breaker, quota=quota, since_ms=now_ms)


def _so_far(quota: int, elapsed_ms: int, interval_ms: int) -> int:
    """How many of a quota may have started by now: all at once would be a burst on what is just back.

    In few parts, because messages that were parked together come back together: if only as many could run as the very
    moment allows, it would not be seen for long that all is well again.
    """
    part = min(_PARTS, 1 + _PARTS * elapsed_ms // interval_ms)
    return -(-quota * part // _PARTS)
