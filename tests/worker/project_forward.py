"""The project for retries that the main process publishes: announced delays, bodies that go on, and a pulse."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace

from celery.bootsteps import StartStopStep
from kombu.entity import Exchange, Queue
from project import app, record

from celery_dlx_retry import DLXRetryTask, Fixed, FullJitter

PREFIX = app.conf.task_default_queue.removesuffix(".work")

app.conf.task_queues = [
    Queue(app.conf.task_default_queue, Exchange(app.conf.task_default_queue), routing_key=app.conf.task_default_queue),
    Queue(f"{PREFIX}.mine", Exchange(f"{PREFIX}.mine"), routing_key=f"{PREFIX}.mine", exclusive=True),
]


@app.task(bind=True, base=DLXRetryTask, name="project.announced", max_retries=1, default_retry_delay=0.3)
def announced(self, then="raise"):
    """Ask for a retry, and then let it be, or do something else."""
    record(self)
    if self.request.retries:
        return "healed"
    try:
        self.retry()  # it raises
    except Exception:
        if then == "raise":
            raise
    if then == "fail":
        raise ValueError("something else")
    if then == "die":
        os._exit(1)
    return "went on"


@app.task(bind=True, base=DLXRetryTask, name="project.gated", max_retries=1)
def gated(self, gate, countdown):
    """Announce itself, wait for a file, and retry."""
    record(self)
    if self.request.retries:
        return "healed"
    while not Path(gate).exists():
        time.sleep(0.01)  # noqa: TID251 - the gate can only be polled
    raise self.retry(countdown=countdown)


@app.task(bind=True, base=DLXRetryTask, name="project.work_long", max_retries=1, default_retry_delay=0.3)
def work_long(self, seconds):
    """Take so long, and retry once."""
    record(self)
    time.sleep(seconds)  # noqa: TID251 - work that takes its time
    if not self.request.retries:
        self.retry()


@app.task(bind=True, base=DLXRetryTask, name="project.overrun_at_random", time_limit=1,
          policy=Fixed(20, retries=1, jitter=FullJitter()))  # fmt: skip
def overrun_at_random(self):
    """Run into the hard time limit, once, and be retried in a lane that nobody has announced."""
    record(self)
    if self.request.retries == 0:
        time.sleep(60)  # noqa: TID251 - work that takes too long


class Pulse(StartStopStep):
    """Record whenever the event loop stood still for long."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    at = None

    def start(self, consumer):
        consumer.timer.call_repeatedly(0.05, self.beat)

    def beat(self):
        before, self.at = self.at, time.monotonic()
        if before is not None and self.at - before > 0.5:
            pulse = SimpleNamespace(name="pulse", request=SimpleNamespace(id=None, retries=0, delivery_info=None))
            record(pulse, "stood still", seconds=self.at - before)


app.steps["consumer"].add(Pulse)
