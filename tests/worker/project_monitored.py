"""The project for monitors: the same task on plain Celery and on ours."""

from __future__ import annotations

from celery import Task
from project import app

from celery_dlx_retry import DLXRetryTask


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
