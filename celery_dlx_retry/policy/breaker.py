"""Circuit breakers as users write them: when a task stops running, and when it is tried again."""

from __future__ import annotations

from dataclasses import dataclass, field

from celery_dlx_retry.errors import InvalidPolicy
from celery_dlx_retry.policy.policies import MAX_DELAY_MS
from celery_dlx_retry.values.durations import Seconds, is_count, to_ms


@dataclass(frozen=True, slots=True)
class Breaker:
    """Stop running a task that fails every time: park its messages in a lane, and try one of them from time to time.

    - ``after``: the breaker opens after so many failures in a row.
    - ``probe_every``: an open breaker lets one message run in this time, and parks the others for the same time. After
      one success it lets 2 run in this time, then 4, 8 and so on, until it parks no message; a quarter of them in each
      quarter of the time.
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
        """Return the delay of parked messages, so that a worker can make the lane for it."""
        return frozenset((self.interval_ms,))
