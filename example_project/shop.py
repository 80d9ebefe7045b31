"""The shop's Celery app: ordinary tasks, each with another way to retry.

What the outside world does is played: banks and mail servers fail so many times, and three tasks have a bug until
the file ``fixed`` appears in the shop's folder, which plays the deployment.

    celery -A example_project.shop worker
"""

from __future__ import annotations

import json
import os
import time
from contextlib import contextmanager
from pathlib import Path
from smtplib import SMTPServerDisconnected

from celery import Celery

from celery_dlx_retry import DEAD, Delays, DLXRetryTask, Exponential, On

FOLDER = Path(os.environ.get("SHOP_FOLDER", "."))
RECORDS = FOLDER / "records.jsonl"
FIXED = FOLDER / "fixed"

app = Celery("shop")
app.conf.update(
    broker_url=os.environ.get("SHOP_BROKER_URL", "amqp://guest:guest@127.0.0.1//"),
    task_default_queue=os.environ.get("SHOP_NAME", "shop"),
    dlx_prefix=os.environ.get("SHOP_NAME", "shop"),
    dlx_require_rabbitmq=True,
    # A sender wants to know that the broker has its task; our retries and dead letters are confirmed anyway.
    broker_transport_options={"confirm_publish": True},
    broker_connection_retry_on_startup=True,
    task_ignore_result=True,
)


@app.task(bind=True, base=DLXRetryTask)
def thumbnail(self, order):
    """Nothing goes wrong."""
    with recorded(self):
        return f"{order}.png"


@app.task(bind=True, base=DLXRetryTask, policy=Exponential(3, factor=2, limit=60, retries=4))
def charge(self, order):
    """A policy says which errors are retried, and when: after 3, 6, 12 and 24 seconds."""
    with recorded(self):
        fails_at_first(self, ConnectionError(f"the bank answers 503 for {order}"), times=2)


@app.task(
    bind=True,
    base=DLXRetryTask,
    autoretry_for=(SMTPServerDisconnected,),
    retry_backoff=2,
    retry_jitter=False,
    max_retries=5,
)
def send_mail(self, order):
    """Celery's own options work as they always did: after 2, 4, 8 … seconds."""
    with recorded(self):
        fails_at_first(self, SMTPServerDisconnected(f"the mail server hung up on {order}"), times=2)


@app.task(bind=True, base=DLXRetryTask, max_retries=3)
def webhook(self, order):
    """So does ``self.retry()``. No option announces these 5 seconds: they are rounded up to the grid of lanes."""
    with recorded(self):
        try:
            fails_at_first(self, TimeoutError(f"the partner is slow to take {order}"), times=1)
        except TimeoutError as exc:
            raise self.retry(exc=exc, countdown=5) from exc


@app.task(bind=True, base=DLXRetryTask)
def report(self, order, *, seconds=3.0):
    """Busy when the worker is killed: it is redelivered."""
    with recorded(self):
        time.sleep(seconds)  # noqa: TID251 - plays hard work
        return f"report on {order}"


@app.task(bind=True, base=DLXRetryTask, policy=Delays([1, 2]))
def ship(self, order):
    """Fails at every attempt, until its bug is fixed: ``exhausted``."""
    with recorded(self):
        fails_until_fixed(ConnectionError(f"the carrier says 410 Gone to {order}"))


@app.task(bind=True, base=DLXRetryTask, policy=Exponential(3, rules=[On(KeyError, DEAD)]))
def invoice(self, order):
    """An error that no retry heals, and the policy knows it: ``failed``."""
    with recorded(self):
        fails_until_fixed(KeyError(f"vat_id of {order}"))


@app.task(bind=True, base=DLXRetryTask)
def refund(self, order):
    """The task itself gives up: ``requested``."""
    with recorded(self):
        if not FIXED.exists():
            self.dead_letter(f"{order} was paid in Drachma")


@contextmanager
def recorded(task):
    """Write down that a task was started, and that it was done; the demo counts these, and believes nothing else."""
    write(task, "started")
    yield
    write(task, "done")


def write(task, event):
    request = task.request
    record = {"id": request.id, "task": task.name, "event": event, "attempt": request.retries + 1}
    # O_APPEND and one write(): lines of several processes do not mix, and a kill leaves no half of one.
    file = os.open(RECORDS, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, json.dumps(record).encode() + b"\n")
    finally:
        os.close(file)


def fails_at_first(task, error, *, times):
    if task.request.retries < times:
        raise error


def fails_until_fixed(error):
    if not FIXED.exists():
        raise error
