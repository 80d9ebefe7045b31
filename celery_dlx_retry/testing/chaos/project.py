"""What the workers of a chaos run load: an app, and tasks that fail in every possible way and write records.

A record is one line in one file, written before and after the body, so a killed process does not lose it.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
from typing import TYPE_CHECKING, Any, NoReturn

from celery import Celery

from celery_dlx_retry.broker.work_queues import dlx_queue
from celery_dlx_retry.policy.jitter import FullJitter
from celery_dlx_retry.policy.policies import Delays, Exponential, Fixed
from celery_dlx_retry.testing.records import append_line
from celery_dlx_retry.worker.task import DLXRetryTask

if TYPE_CHECKING:
    from collections.abc import Callable

#: The variable from which a worker reads its part of the run, as JSON: ``configuration``, ``records`` and ``pool``.
RUN = "CHAOS_RUN"
LONGEST_BODY_SECONDS = 0.02


def configuration(*, prefix: str, url: str, queue_type: Any, lanes: str) -> dict[str, Any]:
    """Celery's settings of a run, for those who send and those who work."""
    queue = queue_name(prefix)
    return {
        "broker_url": url,
        "broker_connection_retry_on_startup": True,
        "broker_connection_max_retries": None,
        "broker_transport_options": {"confirm_publish": True},
        "dlx_prefix": prefix,
        "dlx_queue_type": lanes,
        "task_default_queue": queue,
        "task_ignore_result": True,
        "task_queues": [dlx_queue(queue, queue_type=queue_type, prefix=prefix)],
        "worker_enable_remote_control": False,  # its exchanges would stay on a broker that is not ours
        "worker_lost_wait": 1.0,
        "worker_prefetch_multiplier": 1,
    }


def queue_name(prefix: str) -> str:
    """The work queue of a run."""
    return f"{prefix}.work"


run = json.loads(os.environ.get(RUN, "{}"))
app = Celery("chaos", set_as_current=False)
if run:
    app.conf.update(configuration(**run["configuration"]))


class Outage(Exception):
    """An error that goes away."""


class Recorded(DLXRetryTask):
    """Writes one line before the body and one after it."""

    abstract = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the body between two records."""
        record(self.request, "start")
        time.sleep(random.uniform(0, LONGEST_BODY_SECONDS))  # noqa: S311, TID251 - work takes time, and kills meet it
        result = super().__call__(*args, **kwargs)
        record(self.request, "done")
        return result


def chaotic(**options: Any) -> Callable[[Callable[..., None]], Any]:
    """Celery's decorator, with a type."""
    decorator: Callable[[Callable[..., None]], Any] = app.task(base=Recorded, shared=False, **options)
    return decorator


@chaotic()
def succeed() -> None:
    """Nothing goes wrong."""


@chaotic(bind=True, policy=Exponential(0.1, factor=2, limit=1, retries=6))
def heal_by_policy(self: Any, failures: int) -> None:
    """Announced delays."""
    fail_at_first(self, failures)


@chaotic(bind=True, policy=Fixed(0.8, retries=6, jitter=FullJitter()))
def heal_by_jitter(self: Any, failures: int) -> None:
    """Delays that the worker does not know in advance."""
    fail_at_first(self, failures)


@chaotic(bind=True, max_retries=None)
def heal_by_retry(self: Any, failures: int, countdown: float) -> None:
    """Celery's own way to ask."""
    try:
        fail_at_first(self, failures)
    except Outage as exc:
        raise self.retry(exc=exc, countdown=countdown) from exc


# With jitter, as is Celery's default.
@chaotic(bind=True, autoretry_for=(Outage,), max_retries=None, retry_backoff=1, retry_backoff_max=2)
def heal_by_autoretry(self: Any, failures: int) -> None:
    """Celery's other way."""
    fail_at_first(self, failures)


@chaotic(policy=Delays([0.1, 0.3]))
def exhaust() -> NoReturn:
    """Every retry is used up."""
    raise Outage("does not pass")


@chaotic()
def fail() -> NoReturn:
    """No policy, no retry."""
    raise ValueError("wrong for ever")


@chaotic(bind=True)
def give_up(self: Any) -> None:
    """The task knows."""
    self.dead_letter("asked for")


@chaotic(bind=True)
def crash(self: Any) -> None:
    """Kill the pool process, as the kernel does when memory is short."""
    if self.request.retries == 0:
        os.kill(os.getpid(), signal.SIGKILL)


@chaotic(bind=True, policy=Fixed(0.2), time_limit=1)
def overrun(self: Any) -> None:
    """Runs into the hard time limit."""
    if self.request.retries == 0:
        time.sleep(60)  # noqa: TID251 - longer than it may


def fail_at_first(task: Any, failures: int) -> None:
    """Fail so many times, and then no more."""
    if task.request.retries < failures:
        raise Outage(f"{task.request.retries + 1} of {failures}")


def record(request: Any, event: str) -> None:
    """One line. With prefork the parent is the worker."""
    line = {
        "id": request.id,
        "event": event,
        "attempt": request.retries + 1,
        "pid": os.getpid(),
        "worker": os.getppid() if run["pool"] == "prefork" else os.getpid(),
        "at": time.time(),
    }
    append_line(run["records"], line)
