"""What each process has for itself: a forked process starts with new locks, whatever its parent holds."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery import Celery

T = TypeVar("T")


def own(app: Celery, make: Callable[[], T], *key: Any) -> T:
    """What this process of the app has under this key; made when it has nothing yet."""
    kept: dict[Any, T] = app.__dict__.setdefault("_dlx_own", {})
    mine = (os.getpid(), *key)
    return kept[mine] if mine in kept else kept.setdefault(mine, make())


def steady_ms() -> int:
    """Return the milliseconds of the monotonic clock."""
    return time.monotonic_ns() // 1_000_000
