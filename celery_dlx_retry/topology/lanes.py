"""Choose the lane for a delay, and the lanes that a worker makes at its start."""

from __future__ import annotations

from bisect import bisect_left
from functools import lru_cache

from celery_dlx_retry.errors import DelayTooLong
from celery_dlx_retry.values.durations import format_duration

# Celery's autoretry with max_retries=None has no end, but its delays reach retry_backoff_max long before this.
_FORESEEN_RETRIES = 64

# Celery's full jitter may ask for 0. A retry that came back at once could finish before its first run has stored RETRY,
# which would then overwrite the result.
_SHORTEST_MS = 100


def lane_ms(delay_ms: int, *, exact: frozenset[int], ratio: float, limit_ms: int) -> int:
    """Return the length of the lane for a delay: the delay if tasks announced it, else the next step of the grid."""
    if delay_ms > limit_ms:
        raise DelayTooLong(who="A retry", delay=format_duration(delay_ms), limit=format_duration(limit_ms))
    if delay_ms in exact:
        return delay_ms
    steps = grid(ratio, limit_ms)
    return steps[bisect_left(steps, delay_ms)]


@lru_cache(maxsize=8)
def grid(ratio: float, limit_ms: int) -> tuple[int, ...]:
    """Return the lanes for delays that no task announced: a delay is at most multiplied by ``ratio``."""
    steps = [min(_SHORTEST_MS, limit_ms)]
    while steps[-1] < limit_ms:
        # From d = last + 1 on, this step is at most ratio * d: rounding down keeps this exact for whole ms.
        steps.append(min(limit_ms, max(steps[-1] + 1, int(steps[-1] * ratio))))
    return tuple(steps)


def backoff_delays_ms(*, factor: float, maximum: float, retries: int | None) -> frozenset[int]:
    """Return the delays of Celery's ``retry_backoff`` without jitter: whole seconds, doubled each time."""
    start, limit = int(max(1.0, factor)), int(maximum)
    count = _FORESEEN_RETRIES if retries is None else min(retries, _FORESEEN_RETRIES)
    return frozenset(max(0, min(limit, start * 2**n)) * 1000 for n in range(count))
