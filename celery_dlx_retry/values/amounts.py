"""Ages, rates and shares as operators type them: ``2h``, ``50/s``, ``2%``; None if it is none."""

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
    """``90s``, ``30m``, ``2h``, ``7d``, ``2w``, in milliseconds."""
    found = _AGE.fullmatch(text.strip())
    return int(Fraction(found[1]) * _UNIT_MS[found[2]]) if found else None


def rate_per_second(text: str) -> Fraction | None:
    """``50/s``, ``600/m``, ``100/h``, per second."""
    found = _RATE.fullmatch(text.strip())
    rate = Fraction(found[1]) / _PER_SECONDS[found[2]] if found else None
    return rate or None


def share(text: str) -> Fraction | None:
    """``2%`` is 1/50."""
    found = _SHARE.fullmatch(text.strip())
    part = Fraction(found[1]) / _ALL if found else None
    return part if part is not None and part <= 1 else None


@dataclass(slots=True)
class Rate:
    """A steady rate: each step has its moment, counted from the start, so that no error adds up."""

    per_second: Fraction
    _next: float | None = None

    #: Who was held up for longer does not make up for it: a rate is there to protect somebody.
    _LONGEST_BEHIND_SECONDS: ClassVar[float] = 1.0

    def seconds_to_wait(self, now: float) -> float:
        """How long before the next step; ``now`` is a clock that only goes forward."""
        if self._next is None or now - self._next > self._LONGEST_BEHIND_SECONDS:
            self._next = now
        wait = max(0.0, self._next - now)
        self._next += float(1 / self.per_second)
        return wait
