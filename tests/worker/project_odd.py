"""The project for retries whose content no broker takes."""

from __future__ import annotations

from celery.exceptions import Retry
from kombu.entity import Exchange, Queue
from odd_options import ODD
from project import app, record

from celery_dlx_retry import DLXRetryTask, Fixed

QUEUE = app.conf.task_default_queue


@app.task(bind=True, base=DLXRetryTask, name="odd.ask", max_retries=3, default_retry_delay=0.3)
def ask(self, kind):
    """Ask for a retry that cannot be published."""
    record(self)
    self.retry(**ODD[kind])


@app.task(bind=True, base=DLXRetryTask, name="odd.route", max_retries=3, default_retry_delay=0.3)
def route(self):
    record(self)
    self.retry(queue=Queue(f"{QUEUE}.odd", Exchange(f"{QUEUE}.odd", "topic"), routing_key="r" * 300))


@app.task(bind=True, base=DLXRetryTask, name="odd.by_policy", policy=Fixed(0.3, retries=3))
def by_policy(self):
    """Fail, after what makes every retry of it unpublishable."""
    record(self)
    self.request.reply_to = "r" * 300
    raise OSError("down")


@app.task(bind=True, base=DLXRetryTask, name="odd.change", policy=Fixed(0.3, retries=3))
def change(self):
    """Fail, after a change to the message that came."""
    record(self)
    self.request.headers["given"]["odd"] = {1}
    raise OSError("down")


@app.task(bind=True, base=DLXRetryTask, name="odd.grow", max_retries=3, default_retry_delay=0.3)
def grow(self, _text="", swallow=False, size=400_000):  # noqa: FBT002 - a task's argument
    """Ask for a retry with a longer message."""
    record(self)
    try:
        self.retry(args=["x" * size])
    except Retry:
        if not swallow:
            raise


@app.task(bind=True, base=DLXRetryTask, name="odd.good", max_retries=1, default_retry_delay=0.3)
def good(self, _text=""):
    record(self)
    if not self.request.retries:
        self.retry()
    return "healed"


@app.task(bind=True, name="odd.note")
def note(self, *_failure):
    """An errback."""
    record(self, "errback", of=self.request.parent_id)
