"""What Celery's countdown, eta and expires mean here and now."""

from __future__ import annotations

import time
from datetime import datetime, timedelta, timezone
from numbers import Real
from typing import TYPE_CHECKING, Any

from celery.utils.time import maybe_iso8601, maybe_make_aware

from celery_dlx_retry.values.durations import to_ms

if TYPE_CHECKING:
    from celery import Celery


def now_ms() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def due_at(app: Celery, eta: Any) -> datetime:
    """An eta in any notation that Celery takes, with its time zone."""
    due: datetime = maybe_make_aware(maybe_iso8601(eta), app.timezone)
    return due


def is_due(eta: datetime | None) -> bool:
    """Whether the time has come."""
    return eta is None or eta <= datetime.now(timezone.utc)


def delay_ms(app: Celery, *, countdown: Any, eta: Any) -> int:
    """How long that is from now on; what is past is due now."""
    if eta and not countdown:  # of both, Celery takes the countdown
        left = due_at(app, eta) - datetime.now(timezone.utc)
        return to_ms(max(left, timedelta(0)), what="eta")
    if isinstance(countdown, (int, float)):
        countdown = max(countdown, 0)
    return to_ms(countdown or 0, what="countdown")


def eta_header(app: Celery, *, countdown: Any, eta: Any) -> str:
    """The header that Celery would write."""
    if countdown:
        eta = maybe_make_aware(app.now() + timedelta(seconds=countdown), app.timezone)
    return eta if isinstance(eta, str) else str(eta.isoformat())


def eta_after(app: Celery, seconds: float) -> str:
    """The header for the delay of a retry."""
    return datetime.fromtimestamp(time.time() + seconds, app.timezone).isoformat()


def expires_header(app: Celery, expires: Any) -> str:
    """Return the header that Celery writes for ``expires``."""
    if isinstance(expires, Real):
        expires = maybe_make_aware(app.now() + timedelta(seconds=float(expires)), app.timezone)
    return expires if isinstance(expires, str) else str(expires.isoformat())
