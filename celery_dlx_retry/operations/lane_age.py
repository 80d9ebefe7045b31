"""How long the first message of a lane has waited at least, found from counts and without a look at the message."""

from __future__ import annotations

#: The HTTP API refreshes its counts every five seconds, and not all at once.
STATISTICS_MS = 10_000
_KEPT_MS = 60_000
_MOST_SAMPLES = 500


class LaneAge:
    """Keeps how many messages were published to one lane, and when.

    If a lane holds more messages now than were published to it since an earlier moment, then one of them was there at
    that moment. All messages of a lane wait the same time, and only publishers put messages into it. So a message that
    was there longer than that time is overdue. The result is a lower limit: it is never too large.
    """

    def __init__(self, delay_ms: int) -> None:
        self._delay_ms = delay_ms
        self._samples: list[tuple[int, int]] = []

    def add(self, *, now_ms: int, messages: int, published: int) -> int:
        """Take the counts of this moment; return for how many ms at least the first message is overdue."""
        if self._samples and (published < self._samples[-1][1] or now_ms < self._samples[-1][0]):
            self._samples.clear()  # the broker counts from 0 again, or the clock was set
        oldest_ms = min((at for at, before in self._samples if messages > published - before), default=now_ms)
        # A healthy lane no longer holds what it held then. The counts may be seconds apart, so keep a little more.
        first_ms = min(oldest_ms, now_ms - self._delay_ms - _KEPT_MS)
        self._samples = [sample for sample in self._samples if sample[0] >= first_ms]
        self._samples.append((now_ms, published))
        if len(self._samples) > _MOST_SAMPLES:
            self._samples = [*self._samples[:-1:2], self._samples[-1]]
        return max(0, now_ms - oldest_ms - self._delay_ms - STATISTICS_MS)
