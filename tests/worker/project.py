"""A Celery project for worker tests, started as a real process: ``celery -A project worker``.

It is configured by the test through the environment, and its tasks append to a file what they do.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from typing import Any

from celery import Celery
from celery.exceptions import Ignore, Reject, TimeLimitExceeded

from celery_dlx_retry import DLXRetryTask, Fixed, On

app = Celery("project")
app.conf.update(
    broker_connection_retry_on_startup=True,
    worker_cancel_long_running_tasks_on_connection_loss=True,
    accept_content=["json", "pickle", "msgpack"],
    worker_enable_remote_control=True,
    result_expires=600,
)
app.conf.update(json.loads(os.environ.get("PROJECT_CONF", "{}")))


def record(task: Any, event: str = "run", **facts: Any) -> None:
    """Append one line; O_APPEND makes it whole whoever else writes."""
    line = {
        "event": event,
        "task": task.name,
        "id": task.request.id,
        "retries": task.request.retries,
        "at": time.time(),
        "pid": os.getpid(),
        "queue": getattr(getattr(task.request.delivery_info, "queue", None), "name", None),
        **facts,
    }
    descriptor = os.open(os.environ["PROJECT_RECORDS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(descriptor, (json.dumps(line) + "\n").encode())
    finally:
        os.close(descriptor)


@app.task(bind=True, base=DLXRetryTask)
def heal(self, failures, countdown=0.2, result="healed", **options):
    """Fail so many times, each waiting the countdown (or the next of a list), then succeed."""
    record(self)
    if self.request.retries < failures:
        delays = countdown if isinstance(countdown, list) else [countdown] * failures
        raise self.retry(countdown=delays[self.request.retries], max_retries=failures, **options)
    return result


@app.task(bind=True, base=DLXRetryTask, max_retries=2, default_retry_delay=0.1)
def exhaust(self):
    record(self)
    raise self.retry(exc=ValueError("always"))


@app.task(bind=True, base=DLXRetryTask)
def fail(self, text="no luck"):
    record(self)
    raise ValueError(text)


@app.task(bind=True, base=DLXRetryTask, policy=Fixed(0.1, retries=2))
def by_policy(self, failures=99):
    record(self)
    if self.request.retries < failures:
        raise OSError("down")
    return "up"


@app.task(bind=True, base=DLXRetryTask)
def give_up(self):
    record(self)
    self.dead_letter("this order is from 1970")


@app.task(bind=True, base=DLXRetryTask)
def reject(self, requeue=False):  # noqa: FBT002 - a task's argument
    record(self)
    raise Reject("not mine", requeue=requeue and not self.request.delivery_info["redelivered"])


@app.task(bind=True, base=DLXRetryTask)
def succeed(self, value=None):
    record(self)
    return value


@app.task(bind=True, base=DLXRetryTask, soft_time_limit=1, time_limit=30)
def linger(self, seconds=20):
    """Run into the soft time limit."""
    record(self)
    time.sleep(seconds)  # noqa: TID251 - work that takes too long


@app.task(bind=True, base=DLXRetryTask)
def ignore(self):
    record(self)
    raise Ignore


@app.task(bind=True, base=DLXRetryTask, time_limit=1)
def overrun(self):
    """Run into the hard time limit."""
    record(self)
    time.sleep(60)  # noqa: TID251 - work that takes too long


@app.task(bind=True, base=DLXRetryTask, time_limit=1, policy=Fixed(0.1, retries=2, rules=[On(TimeLimitExceeded, 0.3)]))
def overrun_once(self):
    record(self)
    if self.request.retries == 0:
        time.sleep(60)  # noqa: TID251 - work that takes too long
    return "in time"


@app.task(bind=True, base=DLXRetryTask)
def crash(self, times=99, how="kill"):
    """Take the pool process down."""
    record(self)
    if self.request.retries < times:
        if how == "exit":
            sys.exit(3)
        os.kill(os.getpid(), signal.SIGSEGV if how == "segv" else signal.SIGKILL)
    return "alive"


@app.task(bind=True, base=DLXRetryTask)
def unencodable(self):
    record(self)
    return object()


@app.task(bind=True, base=DLXRetryTask)
def kill_worker(self):
    """Take the whole worker down, its main process and all."""
    record(self)
    os.killpg(os.getpgid(os.getppid()), signal.SIGKILL)


@app.task(bind=True, base=DLXRetryTask)
def slow(self, seconds):
    record(self)
    time.sleep(seconds)  # noqa: TID251 - work that takes a while
    record(self, "done")


class Stubborn(DLXRetryTask):
    """Hooks that fail after the message has been handed over."""

    abstract = True

    def on_retry(self, *_failure):
        raise RuntimeError("on_retry")

    def on_failure(self, exc, task_id, args, kwargs, einfo):
        super().on_failure(exc, task_id, args, kwargs, einfo=einfo)
        raise RuntimeError("on_failure")


@app.task(bind=True, base=Stubborn)
def stubborn(self, failures):
    record(self)
    if self.request.retries < failures:
        raise self.retry(countdown=0.2, max_retries=1)
    if failures:
        return "healed"
    raise ValueError("no")


@app.task(bind=True, base=DLXRetryTask)
def hungry(self):
    record(self)
    raise MemoryError("too much")


@app.task(bind=True, base=DLXRetryTask)
def mutate(self, thing=None):  # noqa: ARG001 - what cannot be encoded
    record(self)
    raise self.retry(args=[object()], countdown=0.1)


@app.task(bind=True, base=DLXRetryTask)
def reject_oddly(self):
    record(self)
    raise Reject(lambda: None, requeue=False)
