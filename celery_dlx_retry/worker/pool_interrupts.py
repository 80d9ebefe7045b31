"""Errors by which a worker or its pool ends a run from outside: nobody is to take them for failures of the body."""

from __future__ import annotations

import sys
from typing import Any

from celery_dlx_retry.app.context import context_of


def is_end_of_run(task: Any, error: BaseException, *, limits: Any) -> bool:
    """Whether it is one of them, under these time limits of the message's own, if it has any: hard, soft.

    All else that a body raises is its failure, also what is no Exception.
    """
    if isinstance(error, Exception):
        return False
    if isinstance(error, (SystemExit, KeyboardInterrupt)):
        return True  # the worker's own two are a SystemExit; another one counts as a crash
    pool = getattr(context_of(task.app).consumer, "pool", None)
    if not getattr(pool, "is_green", False):
        return False
    # Who is revoked, or whose connection is lost, is killed by a GreenletExit, and Celery has the last word on it.
    return isinstance(error, _class("greenlet", "GreenletExit")) or _is_hard_time_limit(
        error, (limits or (None,))[0] or task.time_limit or getattr(pool, "timeout", None)
    )


def _is_hard_time_limit(error: BaseException, limit: Any) -> bool:
    """Whether gevent's pool raised it; tasks use the same class for timeouts of their own."""
    return limit is not None and isinstance(error, _class("gevent", "Timeout")) and error.seconds == limit


def _class(module: str, name: str) -> Any:
    return getattr(sys.modules.get(module), name, ())
