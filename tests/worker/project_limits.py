"""The project for budgets and breakers. Each task has its own, so that no test draws on another's."""

from __future__ import annotations

import time
from pathlib import Path

from celery.exceptions import SoftTimeLimitExceeded
from project import app, record

from celery_dlx_retry import LET_FAIL, Breaker, Budget, DLXRetryTask, Fixed, On
from celery_dlx_retry.errors import Unreachable

POOR = 0.001  # a share that never comes to a retry here
TWO = Budget(POOR, reserve=2)
app.conf.dlx_budget = TWO


@app.task(bind=True, base=DLXRetryTask, name="limits.policy", policy=Fixed(0.1, retries=5), budget=TWO)
def by_policy(self):
    record(self)
    raise OSError("down")


@app.task(bind=True, base=DLXRetryTask, name="limits.asks", max_retries=5, budget=TWO)
def asks(self):
    record(self)
    raise self.retry(exc=OSError("down"), countdown=0.1)


@app.task(bind=True, base=DLXRetryTask, name="limits.soft", policy=Fixed(0.1, retries=5), budget=TWO)
def soft(self):
    record(self)
    raise SoftTimeLimitExceeded


@app.task(bind=True, base=DLXRetryTask, name="limits.unsent", policy=Fixed(0.1, retries=5), budget=TWO)
def unsent(self):
    """Fail as a body does that calls another task with a countdown while its broker is down."""
    record(self)
    raise Unreachable(problem="down")


@app.task(bind=True, base=DLXRetryTask, name="limits.goes_on", max_retries=5, budget=TWO)
def goes_on(self):
    record(self)
    self.retry(exc=OSError("down"), countdown=0.1, throw=False)


@app.task(
    bind=True,
    base=DLXRetryTask,
    name="limits.auto",
    autoretry_for=(OSError,),
    retry_kwargs={"max_retries": 5, "countdown": 0.1},
    budget=TWO,
)
def auto(self):
    record(self)
    raise OSError("down")


@app.task(
    bind=True,
    base=DLXRetryTask,
    name="limits.overruns",
    time_limit=0.5,
    policy=Fixed(0.1, retries=5),
    budget=Budget(POOR, reserve=1),
)
def overruns(self):
    record(self)
    time.sleep(60)  # noqa: TID251 - work that takes too long


LATER = Budget(POOR, reserve=1, over=0.7)


@app.task(bind=True, base=DLXRetryTask, name="limits.later", policy=Fixed(0.1, retries=2), budget=LATER)
def later(self):
    record(self)
    raise OSError("down")


@app.task(bind=True, base=DLXRetryTask, name="limits.too_late", policy=Fixed(0.1, deadline=0.6), budget=LATER)
def too_late(self):
    record(self)
    raise OSError("down")


@app.task(bind=True, base=DLXRetryTask, name="limits.half", policy=Fixed(0.1, retries=1), budget=Budget(0.5, reserve=1))
def half(self):
    record(self)
    raise OSError("down")


@app.task(bind=True, base=DLXRetryTask, name="limits.shared_a", policy=Fixed(0.1, retries=5))
def shared_a(self):
    record(self)
    raise OSError("down")


@app.task(bind=True, base=DLXRetryTask, name="limits.shared_b", policy=Fixed(0.1, retries=5))
def shared_b(self):
    record(self)
    raise OSError("down")


RICH = Budget(1000, reserve=1000)


@app.task(bind=True, base=DLXRetryTask, name="limits.crowd", policy=60, budget=RICH)
def crowd(self):
    record(self)
    raise OSError("down")


@app.task(bind=True, base=DLXRetryTask, name="limits.queue_up", policy=61, budget=Budget(1, reserve=1000, over=62))
def queue_up(self):
    record(self)
    raise OSError("down")


def fragile(name, **options):
    @app.task(bind=True, base=DLXRetryTask, name=f"limits.{name}", budget=RICH, **options)
    def task(self, outage="", result="up"):
        record(self)
        if Path(outage).is_file():
            raise OSError("down")
        return result

    return task


opens = fragile("opens", policy=Fixed(0.1, retries=None), breaker=Breaker(3, probe_every=0.4))
keeps = fragile("keeps", policy=Fixed(5, retries=None), breaker=Breaker(1, probe_every=1.2))
shown = fragile("shown", breaker=Breaker(1, probe_every=66))
strict = fragile("strict", breaker=Breaker(2, probe_every=64))
stuck = fragile("stuck", breaker=Breaker(1, probe_every=63))


@app.task(
    bind=True,
    base=DLXRetryTask,
    name="limits.blameless",
    policy=Fixed(0.1, errors=OSError, rules=[On(AssertionError, LET_FAIL)]),
    breaker=Breaker(1, probe_every=64),
    budget=RICH,
)
def blameless(self, why):
    record(self)
    if why == "gives up":
        self.dead_letter("not worth it")
    raise {"is let fail": AssertionError, "is dead by policy": KeyError}[why]
