"""Read the delay that an error names: RetryIn, a ``retry_after`` attribute, a Retry-After header."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

from celery_dlx_retry.errors import RetryIn
from celery_dlx_retry.values.durations import to_ms

if TYPE_CHECKING:
    from collections.abc import Callable


def hinted_delay_ms(error: BaseException, *, now: float) -> int | None:
    """Return the delay that an error names where HTTP clients put it; None if there is no valid one.

    A date in the past gives 0. A date without a time zone is UTC.
    """
    for place in _PLACES:
        # Foreign objects: properties raise (those of httpx do), headers have any type, dates overflow.
        # If a hint cannot be read, the backoff decides; this needs no log line.
        try:
            delay_ms = _read(place(error), now=now)
        except Exception:  # noqa: BLE001, S112
            continue
        if delay_ms is not None:
            return delay_ms
    return None


def _own(error: Any) -> Any:
    return error.seconds if isinstance(error, RetryIn) else None


def _attribute(error: Any) -> Any:
    return error.retry_after


def _response_header(error: Any) -> Any:
    """requests.HTTPError, httpx.HTTPStatusError."""
    return _header(error.response.headers)


def _own_header(error: Any) -> Any:
    """aiohttp.ClientResponseError, urllib.error.HTTPError."""
    return _header(error.headers)


_PLACES: tuple[Callable[[Any], Any], ...] = (_own, _attribute, _response_header, _own_header)


def _header(headers: Any) -> Any:
    # items(), not get(): urllib's headers are an email message, not a Mapping, and a plain dict is case-sensitive.
    values = (value for name, value in headers.items() if isinstance(name, str) and name.lower() == "retry-after")
    return next(values, None)


def _read(value: Any, *, now: float) -> int | None:
    if isinstance(value, str):
        value = _parse(value.strip())
    if isinstance(value, datetime):
        moment = value if value.tzinfo else value.replace(tzinfo=timezone.utc)
        return to_ms(max(0.0, moment.timestamp() - now), what="Retry-After")
    if isinstance(value, (int, float, timedelta)):
        return to_ms(value, what="Retry-After")
    return None


def _parse(text: str) -> int | float | datetime:
    # A pattern, because int() and float() also take "1_000", "inf" and Arabic digits.
    if re.fullmatch(r"[0-9]+", text):
        return int(text)
    if re.fullmatch(r"[0-9]*\.[0-9]+", text):
        return float(text)
    return parsedate_to_datetime(text)
