"""What differs between the versions of Celery that we support: all of it, and each names the version that ends it.

It goes when our oldest Celery is that version (tests/unit/test_celery_compat.py tells).
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from celery import VERSION
from celery.utils import serialization

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

#: The first version of Celery that does without it.
ENDS: dict[str, str] = {}
#: No version does; this is the last one that was looked at.
STILL_IN: dict[str, str] = {}


def _ends(version: str, book: dict[str, str] = ENDS) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def note(function: Callable[..., Any]) -> Callable[..., Any]:
        book[function.__name__] = version
        return function

    return note


@_ends("5.7")
def keep_ignore_result(options: dict[str, Any], headers: Mapping[str, Any]) -> None:
    """Celery forgets, when it retries a task, that it was called with ``ignore_result``."""
    if isinstance(ignored := headers.get("ignore_result"), bool):
        options.setdefault("ignore_result", ignored)


@_ends("5.7")
def storable(error: Any) -> Any:
    """Celery stores of an error only what is an ``Exception``, and fails at any other."""
    if isinstance(error, Exception) or not isinstance(error, BaseException) or VERSION[:2] >= (5, 7):
        return error
    kind = type(error)
    return serialization.create_exception_cls(kind.__name__, kind.__module__)(*error.args)


@_ends("5.7")
def dumps_models(task: Any) -> bool:
    """Celery does not make data of arguments that are Pydantic models, and has no attribute that tells so."""
    return getattr(task, "_dump_pydantic_arguments", None) is not None


@_ends("5.7", STILL_IN)
def wait_for_what_is_given(pool: Any) -> None:
    """From 5.6 on Celery forgets, at a warm shutdown, jobs that lie in a process's pipe; they run, and run again.

    Of such a job the process has not said yet that it begins, nobody takes its result, and the broker delivers it
    again. Here a prefork pool keeps them. Can be repeated.
    """
    from celery.concurrency.asynpool import AsynPool  # noqa: PLC0415 - only a worker needs a pool

    processes = getattr(pool, "_pool", None)
    if isinstance(processes, AsynPool):
        pool.flush = functools.partial(_flush, processes)


def _flush(processes: Any) -> None:
    """Celery's own, which it also calls when a connection is lost; then the broker delivers all of it again anyway."""
    from billiard.pool import CLOSE  # noqa: PLC0415 - only a worker needs a pool

    jobs = processes._cache  # noqa: SLF001 - nothing public tells
    given = {number: job for number, job in jobs.items() if _is_given(processes, job)}
    processes.flush()
    if processes._state == CLOSE:  # noqa: SLF001
        jobs.update(given)


def _is_given(processes: Any, job: Any) -> bool:
    return job._write_to is not None and job._writer() not in processes._active_writers  # noqa: SLF001
