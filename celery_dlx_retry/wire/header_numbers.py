"""Read numbers from headers. Any sender can write any value there, so each number has a bound."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, TypeGuard

from celery_dlx_retry.values.durations import is_count

if TYPE_CHECKING:
    from collections.abc import Mapping

#: The largest count that is read. AMQP carries it, and the next one, in 64 bits.
MOST_COUNT = 2**31 - 1
#: The most retries that a task sees: Celery's ``retry_backoff`` computes ``2 ** retries``, which takes 4 ms here.
MOST_RETRIES = 1_000_000
#: The last millisecond of the year 9999, where datetime ends.
LAST_MS = 253_402_300_799_999


def count_of(headers: Mapping[str, Any], name: str) -> int:
    """Return a count, at most MOST_COUNT; 0 if the header is missing or invalid."""
    return bounded_count(headers.get(name))


def retries_of(headers: Mapping[str, Any]) -> int:
    """Return how many retries a message has had, at most MOST_RETRIES."""
    return min(bounded_count(headers.get("retries")), MOST_RETRIES)


def time_ms_of(headers: Mapping[str, Any], name: str) -> int:
    """Return a time in ms since 1970; 0 if the header is missing, invalid, or after the year 9999."""
    value = headers.get(name)
    return value if is_time_ms(value) else 0


def bounded_count(value: Any) -> int:
    """Return the value, at most MOST_COUNT; 0 if it is not a count."""
    return min(value, MOST_COUNT) if is_count(value) else 0


def is_time_ms(value: Any) -> TypeGuard[int]:
    """Return whether it is a time, or a length of time, that datetime can show."""
    return is_count(value) and value <= LAST_MS


def ms_since_1970(at: datetime) -> int | None:
    """Return a moment as ms since 1970, also if its time zone is missing; None if it is before 1970 or too late."""
    # py-amqp gives UTC without a time zone, which Python takes for local time.
    at_ms = int((at.replace(tzinfo=timezone.utc) if at.tzinfo is None else at).timestamp() * 1000)
    return at_ms if is_time_ms(at_ms) else None
