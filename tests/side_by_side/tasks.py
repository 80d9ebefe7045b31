"""The failing tasks of the comparison, for plain Celery and for ours: the same bodies with the same options."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

from celery import Celery
from celery.exceptions import Ignore, Reject


def succeeds(_self, *_results):
    return "well"


def heals(self):
    if self.request.retries < 2:
        raise self.retry(exc=ConnectionError("no answer"), countdown=1)


def is_exhausted(self):
    raise self.retry(exc=ConnectionError("no answer"), countdown=1)


def waits(self):
    raise self.retry(exc=ConnectionError("no answer"), countdown=600)


def fails(_self):
    raise ValueError("broken")


def hangs(_self):
    time.sleep(20)  # noqa: TID251 - the time limit ends it


def hangs_once(self):
    if not self.request.retries:
        hangs(self)


def is_killed_once(self):
    if not self.request.retries:
        os.kill(os.getpid(), signal.SIGKILL)


def rejects(_self):
    raise Reject("not mine", requeue=False)


def ignores(_self):
    raise Ignore


TASKS = {
    "greets": (succeeds, {}),
    "succeeds": (succeeds, {}),
    "countdown": (succeeds, {}),
    "expired": (succeeds, {}),
    "revoked": (succeeds, {}),
    "body": (succeeds, {}),
    "heals": (heals, {}),
    "exhausted": (is_exhausted, {"max_retries": 2}),
    "waits": (waits, {}),
    "fails": (fails, {}),
    "member": (fails, {}),
    "soft": (hangs, {"soft_time_limit": 1}),
    "hard": (hangs, {"time_limit": 1}),
    "once": (hangs_once, {"time_limit": 1}),
    "killed": (is_killed_once, {}),
    "rejects": (rejects, {}),
    "ignores": (ignores, {}),
}


def app_with(base: type, *, queue: str, **options: Any) -> Celery:
    """Return the app of a worker and of its senders; the names of its tasks begin with the name of its queue."""
    app = Celery("shop", broker=os.environ["SHOP_BROKER"], backend=os.environ["SHOP_BACKEND"], set_as_current=False)
    app.conf.update(
        task_default_queue=queue,
        task_send_sent_event=True,
        worker_send_task_events=True,
        broker_connection_retry_on_startup=True,
        worker_cancel_long_running_tasks_on_connection_loss=True,
    )
    options |= {"bind": True, "base": base, "shared": False}
    for name, (body, more) in TASKS.items():
        app.task(body, name=f"{queue}.{name}", **options, **more)
    return app
