"""Backoffs that grow without a limit of their own; see project.py."""

from __future__ import annotations

from project import app, record

from celery_dlx_retry import DLXRetryTask, Exponential


@app.task(bind=True, base=DLXRetryTask, name="project.grow", policy=Exponential(0.1, factor=10, retries=None))
def grow(self, failures):
    record(self)
    if self.request.retries < failures:
        raise OSError("down")


@app.task(bind=True, base=DLXRetryTask, name="project.say_nothing")
def say_nothing(self):
    record(self)
    if not self.request.retries:
        raise self.retry()
