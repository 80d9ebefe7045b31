"""The project for tests that pull the floor away: tasks with a plan, whatever happens around them."""

from __future__ import annotations

import gc
import os
import time

from project import app, record

from celery_dlx_retry import DLXRetryTask
from celery_dlx_retry.app.context import context_of


def wait_for(gate):
    while gate is not None and not os.path.exists(gate):  # noqa: PTH110 - no more work than needed
        time.sleep(0.01)  # noqa: TID251 - the gate can only be polled


@app.task(bind=True, base=DLXRetryTask, name="project.plan")
def plan(self, end, failures=0, countdown=0.1, seconds=0.0, gate=None):  # noqa: PLR0913, PLR0917
    """Work so long each time, fail so many times, then end "done" or "dead", when there is this file."""
    record(self)
    time.sleep(seconds)  # noqa: TID251 - the work
    record(self, "worked")
    if self.request.retries < failures:
        raise self.retry(countdown=countdown, max_retries=failures)
    wait_for(gate)
    if end == "dead":
        raise ValueError("planned")
    record(self, "done")
    return end


@app.task(bind=True, base=DLXRetryTask, name="project.fork")
def fork(self, failures):
    """Fork before each retry; the child tidies up, publishes, and is gone before the retry is published."""
    record(self)
    if child := os.fork():
        _, status = os.waitpid(child, 0)
        record(self, "forked", status=status)
    else:
        status = 1
        try:
            gc.collect()  # what it inherited and does not use may be closed now
            with context_of(self.app).publisher.producer() as producer:
                producer.publish("child", exchange="", routing_key=f"{self.app.conf.task_default_queue}.forked")
            status = 0
        finally:
            os._exit(status)
    if self.request.retries < failures:
        raise self.retry(countdown=0.1, max_retries=failures)
    record(self, "done")


@app.task(bind=True, base=DLXRetryTask, name="project.hasty", soft_time_limit=4, time_limit=60)
def hasty(self, gate):
    """Announce itself, wait for a file, and retry: the time is up while the retry is published."""
    record(self)
    if self.request.retries == 0:
        wait_for(gate)
        record(self, "retrying")
        raise self.retry(countdown=0.15)  # in a lane that its process does not know, so that it publishes by itself
    record(self, "done")
