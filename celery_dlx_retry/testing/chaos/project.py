"""What the workers of a chaos run load: an app, and tasks that fail in every way there is, and keep records.

A record is one line in one file, written before and after the body: it outlives its process.
"""

from __future__ import annotations

import os
import random
import signal
import time
from typing import TYPE_CHECKING, Any, NoReturn

from celery import Celery

from celery_dlx_retry.broker.work_queues import dlx_queue
from celery_dlx_retry.policy.decision import Delays, Exponential, Fixed
from celery_dlx_retry.policy.jitter import FullJitter
from celery_dlx_retry.testing.records import append_line
from celery_dlx_retry.worker.task import DLXRetryTask

if TYPE_CHECKING:
    from collections.abc import Callable

PREFIX, BROKER, RECORDS = "CHAOS_PREFIX", "CHAOS_BROKER_URL", "CHAOS_RECORDS"
QUEUE_TYPE, LANES, POOL = "CHAOS_QUEUE_TYPE", "CHAOS_LANES", "CHAOS_POOL"
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


app = Celery("chaos", set_as_current=False)
if PREFIX in os.environ:
    app.conf.update(
        configuration(
            prefix=os.environ[PREFIX],
            url=os.environ[BROKER],
            queue_type=os.environ[QUEUE_TYPE],
            lanes=os.environ[LANES],
        )
    )


class Outage(Exception):
    """Something that passes."""


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


def task(**options: Any) -> Callable[[Callable[..., None]], Any]:
    """Celery's decorator, with a type."""
    decorator: Callable[[Callable[..., None]], Any] = app.task(base=Recorded, shared=False, **options)
    return decorator


@task()
def succeed() -> None:
    """Nothing goes wrong."""


@task(bind=True, policy=Exponential(0.1, factor=2, limit=1, retries=6))
def heal_by_policy(self: Any, failures: int) -> None:
    """Announced delays."""
    fail_at_first(self, failures)


@task(bind=True, policy=Fixed(0.8, retries=6, jitter=FullJitter()))
def heal_by_jitter(self: Any, failures: int) -> None:
    """Delays that nobody can foresee."""
    fail_at_first(self, failures)


@task(bind=True, max_retries=None)
def heal_by_retry(self: Any, failures: int, countdown: float) -> None:
    """Celery's own way to ask."""
    try:
        fail_at_first(self, failures)
    except Outage as exc:
        raise self.retry(exc=exc, countdown=countdown) from exc


# With jitter, as is Celery's default.
@task(bind=True, autoretry_for=(Outage,), max_retries=None, retry_backoff=1, retry_backoff_max=2)
def heal_by_autoretry(self: Any, failures: int) -> None:
    """Celery's other way."""
    fail_at_first(self, failures)


@task(policy=Delays([0.1, 0.3]))
def exhaust() -> NoReturn:
    """Every retry is used up."""
    raise Outage("does not pass")


@task()
def fail() -> NoReturn:
    """No policy, no retry."""
    raise ValueError("wrong for ever")


@task(bind=True)
def give_up(self: Any) -> None:
    """The task knows."""
    self.dead_letter("asked for")


@task(bind=True)
def crash(self: Any) -> None:
    """Takes its pool process along, as the kernel does when memory is short."""
    if self.request.retries == 0:
        os.kill(os.getpid(), signal.SIGKILL)


@task(bind=True, policy=Fixed(0.2), time_limit=1)
def overrun(self: Any) -> None:
    """Runs into the hard time limit."""
    if self.request.retries == 0:
        time.sleep(60)  # noqa: TID251 - longer than it may


def fail_at_first(run: Any, failures: int) -> None:
    """Fail so many times, and then no more."""
    if run.request.retries < failures:
        raise Outage(f"{run.request.retries + 1} of {failures}")


def record(request: Any, event: str) -> None:
    """One line. With prefork the parent is the worker."""
    is_prefork = os.environ.get(POOL, "prefork") == "prefork"
    line = {
        "id": request.id,
        "event": event,
        "attempt": request.retries + 1,
        "pid": os.getpid(),
        "worker": os.getppid() if is_prefork else os.getpid(),
        "at": time.time(),
    }
    append_line(os.environ[RECORDS], line)
