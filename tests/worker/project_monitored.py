"""The project for monitors: the same task on plain Celery and on ours."""

from __future__ import annotations

import os
import signal
import time

from celery import Task
from project import app, record

from celery_dlx_retry import DLXRetryTask, Fixed


class Plain(Task):
    abstract = True
    acks_late = True


def waits(self):
    raise self.retry(exc=ConnectionError("no answer"), countdown=60)


def fails(_self):
    raise ValueError("broken")


for base, twin in ((Plain, "plain"), (DLXRetryTask, "ours")):
    for body in (waits, fails):
        app.task(body, bind=True, base=base, name=f"monitored.{twin}.{body.__name__}")


@app.task(bind=True, base=DLXRetryTask, name="monitored.main", policy=Fixed(0.2, retries=1), time_limit=1)
def interrupted(self, how, times):
    """End so often in a way that only the main process sees."""
    record(self, eta=self.request.eta)
    if self.request.retries < times:
        if how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(30)  # noqa: TID251 - beyond its hard time limit
