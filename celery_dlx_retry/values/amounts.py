"""Read ages, rates and shares as operators type them: ``2h``, ``50/s``, ``2%``. Other text gives None."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

_UNIT_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_PER_SECONDS = {"s": 1, "m": 60, "h": 3600}
_AGE = re.compile(r"(\d{1,9}(?:\.\d{1,3})?)([smhdw])", re.ASCII)
_RATE = re.compile(r"(\d{1,9}(?:\.\d{1,3})?)/([smh])", re.ASCII)
_SHARE = re.compile(r"(\d{1,3}(?:\.\d{1,3})?)\s*%", re.ASCII)
_ALL = 100


def age_ms(text: str) -> int | None:
    """Return an age like ``90s``, ``30m``, ``2h``, ``7d`` or ``2w`` in milliseconds."""
    match = _AGE.fullmatch(text.strip())
    return int(Fraction(match[1]) * _UNIT_MS[match[2]]) if match else None


def rate_per_second(text: str) -> Fraction | None:
    """Return a rate like ``50/s``, ``600/m`` or ``100/h`` per second; None for a rate of 0."""
    match = _RATE.fullmatch(text.strip())
    return (Fraction(match[1]) / _PER_SECONDS[match[2]] or None) if match else None


def share(text: str) -> Fraction | None:
    """Return a share as a fraction: ``2%`` is 1/50."""
    match = _SHARE.fullmatch(text.strip())
    part = Fraction(match[1]) / _ALL if match else None
    return part if part is not None and part <= 1 else None


@dataclass(slots=True)
class Rate:
    """A steady rate. The moment of each step is counted from the start, so that rounding errors do not add up."""

    per_second: Fraction
    _next: float | None = None

    #: After a longer hold-up the schedule starts again: a burst to catch up would exceed the rate.
    _LONGEST_BEHIND_SECONDS: ClassVar[float] = 1.0

    def seconds_to_wait(self, now: float) -> float:
        """Return the wait before the next step; ``now`` is from a monotonic clock."""
        if self._next is None or now - self._next > self._LONGEST_BEHIND_SECONDS:
            self._next = now
        wait = max(0.0, self._next - now)
        self._next += float(1 / self.per_second)
        return wait
