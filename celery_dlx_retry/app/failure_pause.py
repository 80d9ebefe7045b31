"""How soon something is tried again that failed: later each time, so that it is no hot loop."""

from __future__ import annotations

import time
from collections import defaultdict

from celery_dlx_retry.topology.wait_route import place


class Pace:
    """One try for all who want the same, and a longer pause after each that failed."""

    def __init__(self, *, first: float, longest: float) -> None:
        self._first, self._longest = first, longest
        #: In a row.
        self.failures, self._not_before = 0, 0.0

    def left(self) -> float:
        """Seconds until the next try."""
        return max(0.0, self._not_before - time.monotonic())

    def failed(self) -> float:
        """Seconds to wait now."""
        pause = min(self._longest, self._first * 2.0 ** min(self.failures, 10))
        self.failures += 1
        self._not_before = time.monotonic() + pause
        return pause

    def succeeded(self) -> None:
        """The next failure is the first again."""
        self.failures, self._not_before = 0, 0.0


class FailurePauses:
    """A pace for each place that takes messages; the empty name is for a broker that was not reached at all."""

    def __init__(self, *, first: float, longest: float) -> None:
        #: Only of places that failed.
        self.by_place: defaultdict[str, Pace] = defaultdict(lambda: Pace(first=first, longest=longest))

    def failed(self, where: str) -> float:
        """Seconds to wait now."""
        return self.by_place[where].failed()

    def reached(self, where: str) -> None:
        """It took a message."""
        self.by_place.pop(where, None)
        self.by_place.pop("", None)


def place_of(problem: BaseException) -> str:
    """Return the place that did not take a message; empty if the broker was not reached."""
    exchange = getattr(problem, "exchange", None)
    return "" if exchange is None else place(exchange, getattr(problem, "routing_key", ""))
