"""The project for messages that their sender has RabbitMQ copy into other queues."""

from __future__ import annotations

import os
import signal
import time

from project import app, record

from celery_dlx_retry import DLXRetryTask, Fixed

TWICE = Fixed(0.1, retries=2)


@app.task(bind=True, base=DLXRetryTask, name="copies.by_policy", policy=TWICE)
def by_policy(self):
    record(self)
    raise OSError("down")


@app.task(bind=True, base=DLXRetryTask, name="copies.by_retry", max_retries=2)
def by_retry(self, **options):
    """The options of retry() may ask for copies, too."""
    record(self)
    raise self.retry(countdown=0.1, **options)


@app.task(bind=True, base=DLXRetryTask, name="copies.die", max_retries=2)
def die(self):
    """The main process publishes its retries."""
    record(self)
    time.sleep(0.5)  # noqa: TID251 - Celery runs a job once more if its process dies before Celery knows that it began
    os.kill(os.getpid(), signal.SIGKILL)


@app.task(bind=True, base=DLXRetryTask, name="copies.overrun", time_limit=0.5, policy=TWICE)
def overrun(self):
    record(self)
    time.sleep(60)  # noqa: TID251 - work that takes too long


@app.task(bind=True, base=DLXRetryTask, name="copies.fail")
def fail(self):
    record(self)
    raise ValueError("no")
