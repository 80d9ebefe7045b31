"""The project for messages and errors that nobody should send or raise."""

from __future__ import annotations

import builtins
import os
import signal
import time

from project import app, record

from celery_dlx_retry import Breaker, DLXRetryTask, Fixed, On


def note(task, event):
    """Record by the header that the test gave every message, for its id may be anything."""
    message = task.request.delivery_info.message
    number = message.headers.get("hostile-number") or message.properties.get("message_id")
    record(task, event, id=repr(task.request.id)[:100], retries=repr(task.request.retries)[:100], number=number)


@app.task(bind=True, base=DLXRetryTask, name="hostile.succeed")
def succeed(self, *_args, **_kwargs):
    note(self, "done")


@app.task(bind=True, base=DLXRetryTask, name="hostile.fail")
def fail(self, *_args, **_kwargs):
    note(self, "run")
    raise ValueError("planned")


@app.task(bind=True, base=DLXRetryTask, name="hostile.retry", default_retry_delay=0.1, max_retries=1)
def retry(self, *_args, **_kwargs):
    note(self, "run")
    raise self.retry()


@app.task(bind=True, base=DLXRetryTask, name="hostile.obey", policy=Fixed(0.1, retries=1))
def obey(self, *_args, **_kwargs):
    note(self, "run")
    raise OSError("down")


@app.task(
    bind=True, base=DLXRetryTask, name="hostile.by_rule", policy=Fixed(0.1, retries=1, rules=[On(OSError, [0.1])])
)
def by_rule(self, *_args, **_kwargs):
    note(self, "run")
    raise OSError("down")


@app.task(
    bind=True, base=DLXRetryTask, name="hostile.back_off", autoretry_for=(OSError,), retry_backoff=True, max_retries=1
)
def back_off(self, *_args, **_kwargs):
    note(self, "run")
    raise OSError("down")


@app.task(
    bind=True,
    base=DLXRetryTask,
    name="hostile.trip",
    policy=Fixed(0.1, retries=0),
    breaker=Breaker(1, probe_every=3600),
)
def trip(self, *_args, **_kwargs):
    """Open the breaker of this process for an hour."""
    note(self, "run")
    raise OSError("down")


@app.task(bind=True, base=DLXRetryTask, name="hostile.die")
def die(self, *_args, **_kwargs):
    """Take the pool process down: the main process alone can settle it."""
    note(self, "run")
    os.kill(os.getpid(), signal.SIGKILL)


@app.task(bind=True, base=DLXRetryTask, name="hostile.overrun", time_limit=0.3, policy=Fixed(0.1, retries=1))
def overrun(self, *_args, **_kwargs):
    note(self, "run")
    time.sleep(60)  # noqa: TID251 - work that takes too long


class Unprintable(Exception):
    def __str__(self):
        raise RuntimeError("cannot say")

    __repr__ = __str__


class Unpicklable(Exception):
    def __init__(self, *args):
        super().__init__(*args)
        self.hook = lambda: args


class Greedy(Exception):
    """Cannot be made again from its own args."""

    def __init__(self, first, *, second):
        super().__init__(first)
        self.second = second


def chained(length):
    error = ValueError("root")
    for number in range(length):
        outer = RuntimeError(f"{number} " + "y" * 200)
        outer.__cause__ = error
        error = outer
    return error


def circular():
    first, second = ValueError("first"), ValueError("second")
    first.__context__, second.__context__ = second, first
    return first


def group():
    kind = getattr(builtins, "ExceptionGroup", None)  # since Python 3.11
    return kind("many", [ValueError("x" * 1000)] * 500) if kind else ValueError("alone")


ERRORS = {
    "megabytes of text": lambda: ValueError("x" * 5_000_000),
    "megabytes of lines": lambda: ValueError("line\n" * 1_000_000),
    "surrogates": lambda: ValueError("\ud800\udfff \x00 \x1b[31m \u2028 \U0001f600" * 500),
    "str() raises": Unprintable,
    "unpicklable": lambda: Unpicklable("with a lambda"),
    "cannot be made again": lambda: Greedy("one", second="two"),
    "huge args": lambda: ValueError(*[b"\xff" * 1_000_000] * 3, {"deep": [[["x"] * 100_000]]}),
    "1000 causes": lambda: chained(1000),
    "circular context": circular,
    "long type name": lambda: type("Ä" * 10_000, (Exception,), {})("nobody can import it"),
    "a group": group,
}


@app.task(bind=True, base=DLXRetryTask, name="hostile.raise_it")
def raise_it(self, kind, *, retries=0):
    """Raise one of these, after so many retries for the same."""
    note(self, "run")
    error = ERRORS[kind]()
    if retries:
        raise self.retry(exc=error, countdown=0.1, max_retries=retries)
    raise error
