"""The project for what messages look like on their way."""

from __future__ import annotations

import functools

from project import app, record

from celery_dlx_retry import DLXRetryTask, Fixed

CUSTOM = ("tenant", "x-request-id", "trace")


@app.task(bind=True, base=DLXRetryTask, name="wire.echo", default_retry_delay=0.1)
def echo(self, value, failures=2, **options):
    """Say what arrived, after so many retries."""
    record(self, value=repr(value), headers={key: self.request.headers.get(key) for key in CUSTOM})
    if self.request.retries < failures:
        raise self.retry(max_retries=failures, **options)
    return repr(value)


@app.task(bind=True, base=DLXRetryTask, name="wire.swap", default_retry_delay=0.1)
def swap(self, value, secret):
    if self.request.retries == 0:
        raise self.retry(args=["new"], kwargs=self.request.kwargs)
    return f"{value} {secret}"


@app.task(bind=True, base=DLXRetryTask, name="wire.exhaust", default_retry_delay=0.1, max_retries=2)
def exhaust(self, value=None, **options):
    record(self, value=repr(value))
    raise self.retry(exc=ValueError("always"), **options)


@app.task(bind=True, base=DLXRetryTask, name="wire.persist", policy=Fixed(0.05, retries=25))
def persist(self):
    record(self)
    raise OSError("down")


class Unprintable(Exception):
    def __str__(self):
        raise RuntimeError("cannot say")


class Unpicklable(Exception):
    def __init__(self, text):
        super().__init__(text)
        self.lambda_ = lambda: text


NASTY = {
    "huge": lambda: ValueError("x" * 3_000_000),
    "surrogates": lambda: ValueError("\ud800 \x00 \U0001f600"),
    "unprintable": Unprintable,
    "unpicklable": lambda: Unpicklable("with a lambda"),
    "local": lambda: type("Ä" * 300, (Exception,), {})("of a class nobody can import"),
    "chained": lambda: functools.reduce(chained, range(200), ValueError("root")),
}


def chained(cause, number):
    error = RuntimeError(f"{number} " + "y" * 1000)
    error.__cause__ = cause
    return error


@app.task(bind=True, base=DLXRetryTask, name="wire.nasty", default_retry_delay=0.1, max_retries=1)
def nasty(self, kind):
    record(self)
    error = NASTY[kind]()
    raise self.retry(exc=error)
