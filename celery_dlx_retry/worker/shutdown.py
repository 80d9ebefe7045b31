"""A warm shutdown waits for what the pool has been given, and acknowledges it.

From 5.6 on Celery forgets, when it stops, every job whose process has not said yet that it begins. If the job is
in that process's pipe already, it runs all the same, nobody takes its result, and the broker delivers it again.
"""

from __future__ import annotations

import functools
from typing import Any

from billiard.pool import CLOSE
from celery.concurrency.asynpool import AsynPool


def wait_for_what_is_given(pool: Any) -> None:
    """Let a worker's prefork pool keep such jobs; of other pools there is nothing to keep. Can be repeated."""
    processes = getattr(pool, "_pool", None)
    if isinstance(processes, AsynPool):
        pool.flush = functools.partial(_flush, processes)


def _flush(processes: Any) -> None:
    """Celery's own, which it also calls when a connection is lost; then the broker delivers all of it again anyway."""
    jobs = processes._cache  # noqa: SLF001 - nothing public tells
    given = {number: job for number, job in jobs.items() if _is_given(processes, job)}
    processes.flush()
    if processes._state == CLOSE:  # noqa: SLF001
        jobs.update(given)


def _is_given(processes: Any, job: Any) -> bool:
    return job._write_to is not None and job._writer() not in processes._active_writers  # noqa: SLF001
