"""Bodies and hooks that raise what is no Exception; see project.py."""

from __future__ import annotations

import asyncio
import time

from celery.backends.base import DisabledBackend
from celery.signals import task_failure
from project import app, record

from celery_dlx_retry import DLXRetryTask, Fixed


def _raise(kind):
    if kind == "cancelled":
        raise asyncio.CancelledError("c")
    if kind == "generator":
        raise GeneratorExit("g")
    if kind == "timeout":
        import gevent  # noqa: PLC0415 - not in every pool

        raise gevent.Timeout(7)
    raise type("Local", (BaseException,), {})("no other process knows my class")


@app.task(bind=True, base=DLXRetryTask, name="project.beyond", policy=Fixed(0.1, retries=3))
def beyond(self, kind):
    record(self)
    _raise(kind)


@app.task(bind=True, base=DLXRetryTask, name="project.limited", time_limit=30)
def limited(self, kind):
    record(self)
    _raise(kind)


@app.task(
    bind=True, base=DLXRetryTask, name="project.beyond_retried", policy=Fixed(0.1, retries=1, errors=BaseException)
)
def beyond_retried(self, kind):
    record(self)
    _raise(kind)


class FullBackend(DisabledBackend):
    """Takes no result."""

    def store_result(self, *_result, **_options):
        raise RuntimeError("no space left")


@app.task(bind=True, base=DLXRetryTask, name="project.unstored", backend=FullBackend(app=app))
def unstored(self):
    record(self)
    _raise("cancelled")  # whose result is left to the main process


class BadHook(DLXRetryTask):
    """Fails when all is done."""

    abstract = True

    def on_success(self, *_success):
        raise asyncio.CancelledError


@app.task(bind=True, base=BadHook, name="project.bad_hook")
def bad_hook(self):
    record(self)


@app.task(bind=True, base=DLXRetryTask, name="project.endless")
def endless(self):
    record(self)
    time.sleep(60)  # noqa: TID251 - until it is killed


@app.task(bind=True, name="project.errback")
def errback(self, failed):
    record(self, "errback", failed=failed)


@task_failure.connect
def on_task_failure(sender, task_id, **_facts):
    record(sender, "signal", failed=task_id)
