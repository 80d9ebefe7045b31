"""The state of a circuit breaker: which messages may run now, and what the end of a run changes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING

from celery_dlx_retry.policy.decision import Dead, Decision, Wait
from celery_dlx_retry.policy.reasons import Reason

if TYPE_CHECKING:
    from celery_dlx_retry.policy.breaker import Breaker

# An interval has so many parts.
_PARTS = 4


class Outcome(Enum):
    """What a run shows about the service that the task needs."""

    SUCCESS = "success"
    FAILURE = "failure"
    NEITHER = "neither"


def outcome_of(decision: Decision | None, *, has_policy: bool) -> Outcome:
    """Return the outcome of a run. ``decision`` is about its error; a run that returned has none.

    An error that a retry could have helped is a failure of the service. An error that the task or its policy gives up
    at once is a fault of the message.
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
    """A breaker's state. ``now_ms`` is from a monotonic clock."""

    breaker: Breaker
    #: Failures in a row while the breaker is closed.
    failures: int = 0
    #: How many may run in this interval. None: closed, all may. 1: open, one probe. More: on the way to closed.
    quota: int | None = None
    started: int = 0
    parked: int = 0
    has_succeeded: bool = False
    since_ms: int = 0

    def admit(self, *, now_ms: int) -> tuple[Circuit, bool]:
        """Return whether the next message may run, and the state after that."""
        circuit = self._at(now_ms)
        if circuit.quota is None:
            return circuit, True
        if circuit.started < _so_far(circuit.quota, now_ms - circuit.since_ms, circuit.breaker.interval_ms):
            return replace(circuit, started=circuit.started + 1), True
        return replace(circuit, parked=circuit.parked + 1), False

    def record(self, outcome: Outcome, *, now_ms: int) -> Circuit:
        """Return the state after a run."""
        if outcome is Outcome.SUCCESS:
            return self._succeeded(now_ms)
        return self._failed(now_ms) if outcome is Outcome.FAILURE else self

    def _at(self, now_ms: int) -> Circuit:
        """Return the state now: a new interval begins when the last one is over."""
        if self.quota is None or now_ms - self.since_ms < self.breaker.interval_ms:
            return self
        if self.quota == 1 or (self.started and not self.has_succeeded):
            return self._interval(self.quota, now_ms)  # no run has shown anything new
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
        return replace(self._interval(1, now_ms), started=1)  # this run was its probe

    def _interval(self, quota: int, now_ms: int) -> Circuit:
        return Circuit(breaker=self.breaker, quota=quota, since_ms=now_ms)


def _so_far(quota: int, elapsed_ms: int, interval_ms: int) -> int:
    """Return how many of a quota may have started by now. All at once would be a burst on a service that is just back.

    The parts are large because messages that were parked together come back together. If the quota grew by the
    millisecond, most of them would be parked again, and the breaker would take long to close.
    """
    part = min(_PARTS, 1 + _PARTS * elapsed_ms // interval_ms)
    return -(-quota * part // _PARTS)
