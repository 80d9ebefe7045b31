"""The project for tasks that expire in a queue; one of them is Celery's own, acknowledged late as ours are."""

from __future__ import annotations

import time
from datetime import timedelta

from project import app, record

from celery_dlx_retry import DLXRetryTask


def body(self, seconds=0.0, retry_in=None):
    record(self)
    time.sleep(seconds)  # noqa: TID251 - the backlog
    if retry_in is not None and self.request.retries == 0:
        raise self.retry(countdown=retry_in)


ours = app.task(body, bind=True, base=DLXRetryTask, name="expiring.ours")
app.task(body, bind=True, acks_late=True, name="expiring.late")


soon = app.task(body, bind=True, base=DLXRetryTask, name="expiring.soon", expires=0.5)


@app.task(base=DLXRetryTask, name="expiring.send")
def send(countdown, expires):
    """Call it as a process does that knows the class."""
    return ours.apply_async(countdown=countdown, expires=expires).id


@app.task(base=DLXRetryTask, name="expiring.send_all_kinds")
def send_all_kinds(seconds):
    """Keep the worker busy, and send behind that what expires before it runs."""
    blocking = ours.delay(seconds)
    at = app.now() + timedelta(seconds=0.5)
    options = [{"expires": 0.5}, {"expires": at}, {"expires": at.isoformat()}, {"expires": 0.5, "headers": {"x": 1}}]
    expiring = [*(ours.apply_async(**each) for each in options), soon.delay()]
    return blocking.id, [result.id for result in expiring]
