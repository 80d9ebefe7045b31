"""The project for tasks that expire in a queue; one of them is Celery's own, acknowledged late as ours are."""

from __future__ import annotations

import time

from project import app, record

from celery_dlx_retry import DLXRetryTask


def body(self, seconds=0.0, retry_in=None):
    record(self)
    time.sleep(seconds)  # noqa: TID251 - the backlog
    if retry_in is not None and self.request.retries == 0:
        raise self.retry(countdown=retry_in)


ours = app.task(body, bind=True, base=DLXRetryTask, name="expiring.ours")
app.task(body, bind=True, acks_late=True, name="expiring.late")


@app.task(base=DLXRetryTask, name="expiring.send")
def send(countdown, expires):
    """Call it as a process does that knows the class."""
    return ours.apply_async(countdown=countdown, expires=expires).id
