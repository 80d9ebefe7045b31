"""Spread delays, so that tasks that failed together do not come back together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from celery_dlx_retry.errors import InvalidPolicy
from celery_dlx_retry.values.durations import as_fraction, is_number


@dataclass(frozen=True, slots=True)
class FullJitter:
    """Any delay from 0 to the whole delay: the best spread, if a quick retry does no harm."""

    def apply(self, delay_ms: int, chance: float) -> int:
        """Return the jittered delay; ``chance`` is uniform in [0, 1)."""
        return _share_of(delay_ms + 1, chance)

    def longest_within(self, limit_ms: int) -> int:
        """Return the largest delay whose jittered value never exceeds ``limit_ms``."""
        return limit_ms


@dataclass(frozen=True, slots=True)
class ProportionalJitter:
    """The delay plus or minus a share of it: for delays that must keep their magnitude."""

    share: float = 0.1

    def __post_init__(self) -> None:
        if not (is_number(self.share) and 0 < self.share <= 1):
            wanted = "a number above 0 and at most 1"
            raise InvalidPolicy(what="ProportionalJitter.share", value=self.share, wanted=wanted)

    def apply(self, delay_ms: int, chance: float) -> int:
        """Return the jittered delay; ``chance`` is uniform in [0, 1)."""
        spread = int(delay_ms * as_fraction(self.share))
        return delay_ms - spread + _share_of(2 * spread + 1, chance)

    def longest_within(self, limit_ms: int) -> int:
        """Return the largest delay whose jittered value never exceeds ``limit_ms``."""
        return int(limit_ms / (1 + as_fraction(self.share)))


Jitter: TypeAlias = FullJitter | ProportionalJitter


def _share_of(choices: int, chance: float) -> int:
    # Integers, because int * float overflows from 10**309 on. Every one of 0 .. choices - 1 is equally likely.
    numerator, denominator = chance.as_integer_ratio()
    return choices * numerator // denominator
