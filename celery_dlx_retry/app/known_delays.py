"""The delays that an app is known to need before a task has failed: a worker makes their lanes at its start."""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery_dlx_retry.app.task_options import is_ours
from celery_dlx_retry.errors import DelayTooLong
from celery_dlx_retry.policy.policies import Exponential
from celery_dlx_retry.values.durations import format_duration

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery import Celery

    from celery_dlx_retry.settings import Settings

# A task that took its pool process down comes back later each time; dlx_crash_limit says how often.
_AFTER_A_CRASH = Exponential(1, factor=10, limit=100, retries=None)


def announced_delays(app: Celery, settings: Settings) -> Iterator[tuple[str, frozenset[int]]]:
    """Yield who needs which delays, in ms."""
    longest_ms = settings.max_delay_ms
    for name, task in sorted(app.tasks.items()):
        if is_ours(task):
            yield f"The task {name!r}", task.known_delays_ms(longest_ms)
    if settings.budget is not None:
        yield "dlx_budget", settings.budget.known_delays_ms()
    yield "A crash", frozenset(min(ms, longest_ms) for ms in _AFTER_A_CRASH.known_delays_ms())


def validate_delays(app: Celery, settings: Settings) -> None:
    """Raise DelayTooLong for the first delay that is longer than dlx_max_delay."""
    for who, delays in announced_delays(app, settings):
        for delay_ms in sorted(delays):
            if delay_ms > settings.max_delay_ms:
                raise DelayTooLong(
                    who=who, delay=format_duration(delay_ms), limit=format_duration(settings.max_delay_ms)
                )


def delay_after_crash_ms(crashes: int, settings: Settings) -> int:
    """Return how long a task waits that has taken so many pool processes down."""
    return min(_AFTER_A_CRASH.delay_ms(crashes, Exception()) or 0, settings.max_delay_ms)
