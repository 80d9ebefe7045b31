"""The project for chains, groups, chords and all that a retry has to carry along."""

from __future__ import annotations

import os
import signal
import time
from datetime import datetime, timedelta, timezone

from celery import Task
from project import app, record

from celery_dlx_retry import DLXRetryTask

app.conf.timezone = "Asia/Tokyo"  # so that a wrong reading of a naive eta shows


@app.task(bind=True, base=DLXRetryTask, name="canvas.add")
def add(self, x, y, failures=0):
    """Add, after so many retries."""
    record(self)
    if self.request.retries < failures:
        raise self.retry(countdown=0.1)
    return x + y


@app.task(bind=True, base=DLXRetryTask, name="canvas.total")
def total(self, numbers, failures=0):
    record(self, numbers=numbers)
    if self.request.retries < failures:
        raise self.retry(countdown=0.1)
    return sum(numbers)


@app.task(bind=True, base=DLXRetryTask, name="canvas.ours.die", max_retries=1, default_retry_delay=0.1)
def die(self):
    record(self)
    raise self.retry(exc=ValueError("dead"))


@app.task(bind=True, base=Task, name="canvas.plain.die", max_retries=1, default_retry_delay=0.1)
def plain_die(self):
    record(self)
    raise self.retry(exc=ValueError("dead"))


@app.task(bind=True, base=DLXRetryTask, name="canvas.overrun", time_limit=1)
def overrun(self):
    record(self)
    time.sleep(60)  # noqa: TID251 - work that takes too long


@app.task(bind=True, base=DLXRetryTask, name="canvas.lose_its_process")
def lose_its_process(self):
    record(self)
    os.kill(os.getpid(), signal.SIGKILL)


@app.task(bind=True, name="canvas.note")
def note(self, *args, of, event):
    """A callback or errback that says whose it was."""
    record(self, event, of=of, args=args)


@app.task(bind=True, base=DLXRetryTask, name="canvas.replace")
def replace(self, x, y):
    record(self)
    if self.request.retries == 0:
        raise self.retry(countdown=0.1)
    raise self.replace(add.s(x, y, failures=1))


@app.task(bind=True, base=DLXRetryTask, name="canvas.luggage")
def luggage(self, failures=1, countdown=0.1, **options):
    """Say what the message carries."""
    request = self.request
    carried = ("root_id", "parent_id", "reply_to", "correlation_id", "stamps", "stamped_headers", "group",
               "group_index", "timelimit", "expires", "shadow", "ignore_result", "origin")  # fmt: skip
    record(self, **{name: getattr(request, name) for name in carried}, priority=request.delivery_info["priority"])
    if request.retries < failures:
        raise self.retry(countdown=countdown, **options)
    return "arrived"


@app.task(bind=True, base=DLXRetryTask, name="canvas.go_on")
def go_on(self):
    record(self)
    if self.request.retries == 0:
        ret = self.retry(countdown=0.2, throw=False)
        record(self, "went on", returned=type(ret).__name__)
        return "first"
    return "second"


@app.task(bind=True, base=DLXRetryTask, name="canvas.change")
def change(self, x, y=0, *, z=0):
    record(self, args=[x, y, z])
    if self.request.retries == 0:
        raise self.retry(args=(x + 1,), kwargs={"y": y + 1, "z": z + 1}, countdown=0.1)
    if self.request.retries == 1:
        raise self.retry(kwargs={"z": 99}, countdown=0.1)
    return [x, y, z]


@app.task(bind=True, base=DLXRetryTask, name="canvas.endless", max_retries=None)
def endless(self, failures):
    record(self)
    if self.request.retries < failures:
        raise self.retry(countdown=0.05)
    return "at last"


@app.task(bind=True, base=DLXRetryTask, name="canvas.appointment")
def appointment(self, kind, seconds):
    record(self)
    if self.request.retries == 0:
        at = datetime.now(timezone.utc) + timedelta(seconds=seconds)
        tokyo = timezone(timedelta(hours=9))
        eta = {
            "aware": at,
            "elsewhere": at.astimezone(tokyo),
            "naive": at.replace(tzinfo=None),
            "iso": at.astimezone(tokyo).isoformat(),
            "past": at - timedelta(days=1),
        }[kind]
        record(self, "appointment", due=at.timestamp())
        raise self.retry(eta=eta)
