"""The project with Sentry: each task on plain Celery and on ours. What Sentry would send is appended to a file."""

from __future__ import annotations

import json
import os
import signal
import threading

import sentry_sdk
from celery import Task
from celery.beat import ScheduleEntry, Scheduler
from celery.exceptions import Ignore, Reject, TimeLimitExceeded
from celery.schedules import schedule
from project import app
from sentry_sdk.integrations.celery import CeleryIntegration
from sentry_sdk.transport import Transport

from celery_dlx_retry import Breaker, DLXRetryTask, Fixed, On
from celery_dlx_retry.contrib.sentry import install

FILE = os.environ["PROJECT_RECORDS"] + ".sentry"


class ToFile(Transport):
    """Appends each item of each envelope as a line."""

    def capture_envelope(self, envelope):
        for item in envelope.items:
            line = {"type": item.type, "raw": (item.payload.get_bytes() or b"").decode()}
            with open(FILE, "a", encoding="utf-8") as file:  # noqa: PTH123 - one write, which O_APPEND makes whole
                file.write(json.dumps(line) + "\n")
        if os.environ.get("PROJECT_HOOKS") == "raise":
            raise RuntimeError("Sentry is down")


def refuse(*_):
    raise RuntimeError("a hook of the user")


hooks = {}
if os.environ.get("PROJECT_HOOKS") == "raise":
    hooks = {"before_send": refuse, "before_send_transaction": refuse, "before_breadcrumb": refuse}
sentry_sdk.init(
    dsn="http://key@127.0.0.1:9/1",
    transport=ToFile,
    traces_sample_rate=1.0,
    integrations=[CeleryIntegration(monitor_beat_tasks=True)],
    **hooks,
    **json.loads(os.environ.get("PROJECT_SENTRY", "{}")),
)
if not os.environ.get("PROJECT_BARE"):
    install()


class Plain(Task):
    abstract = True
    acks_late = True


def twins(**options):
    def make(body):
        for base, twin in ((Plain, "plain"), (DLXRetryTask, "ours")):
            app.task(body, bind=True, base=base, name=f"sentry.{twin}.{body.__name__}", **options)
        return body

    return make


@twins()
def heals(self, failures=2, countdown=3):
    if self.request.retries < failures:
        raise self.retry(exc=OSError("down"), countdown=countdown, max_retries=failures)


@twins(max_retries=1)
def exhausted(self, secret):  # noqa: ARG001
    raise self.retry(exc=OSError("down"), countdown=0.3)


@twins(autoretry_for=(OSError,), max_retries=1, default_retry_delay=0.3)
def autoretried(_self, _secret):
    raise OSError("down")


@twins()
def fails(_self, _secret):
    raise ValueError("once")


@twins(throws=(ValueError,))
def throws(_self, _secret):
    raise ValueError("expected")


@twins(soft_time_limit=1, time_limit=60)
def soft(_self, _secret):
    threading.Event().wait(50)


@twins()
def rejects(_self, _secret):
    raise Reject("no", requeue=False)


@twins()
def ignores(_self, _secret):
    raise Ignore


@twins(time_limit=1)
def hard(_self, _secret):
    threading.Event().wait(50)


@twins()
def crashes(_self, _secret):
    os.kill(os.getpid(), signal.SIGKILL)


@twins()
def sends(self, countdown=None):
    """Send a task, as a web process does in a transaction."""
    app.tasks[self.name.replace("sends", "heals")].apply_async((0,), countdown=countdown)


BRIEFLY = On(TimeLimitExceeded, Fixed(0.1, retries=1))


@app.task(base=DLXRetryTask, name="sentry.overrun", time_limit=1, policy=Fixed(0.1, retries=1, rules=[BRIEFLY]))
def overrun():
    threading.Event().wait(50)


@app.task(base=DLXRetryTask, name="sentry.loops")
def loops():
    """Take the whole worker down, its main process and all."""
    os.killpg(os.getpgid(os.getppid()), signal.SIGKILL)


BREAKER = Breaker(1, probe_every=4)


@app.task(base=DLXRetryTask, name="sentry.parked", policy=Fixed(0.1, retries=0), breaker=BREAKER)
def parked():
    raise ConnectionError("down")


@app.task(name="sentry.calls")
def calls(name, args=(), times=1):
    """Send a task, as a web process does in a transaction."""
    for _ in range(times):
        app.tasks[name].apply_async(args)


@app.task(name="sentry.beat")
def beat(name, args):
    """Do what Celery's beat does when an entry of its schedule is due."""
    entry = ScheduleEntry(name=name, task=name, schedule=schedule(60), args=args, app=app)
    Scheduler(app=app, lazy=True).apply_entry(entry)
