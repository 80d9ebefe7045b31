"""The project on a broker that is not RabbitMQ: tasks with a policy, and a task that is killed."""

from __future__ import annotations

import os
import signal

from project import app, record

from celery_dlx_retry import DEAD, Delays, DLXRetryTask, Fixed, On, RetryIn

ERRORS = {"OSError": OSError, "TimeoutError": TimeoutError, "KeyError": KeyError, "Later": lambda: RetryIn(0.4)}


@app.task(
    bind=True,
    base=DLXRetryTask,
    name="elsewhere.ruled",
    policy=Delays([0.1, 0.2], rules=[On(TimeoutError, Fixed(0.1, retries=2)), On(KeyError, DEAD)]),
)
def ruled(self, *errors):
    """Raise one error after the other, then return."""
    record(self)
    if self.request.retries < len(errors):
        error = ERRORS[errors[self.request.retries]]
        raise error()
    return self.request.retries


@app.task(bind=True, base=DLXRetryTask, name="elsewhere.asks", policy=[0.1, 0.2])
def asks(self):
    record(self)
    raise self.retry(exc=OSError("down"))


@app.task(bind=True, base=DLXRetryTask, name="elsewhere.patient", policy=Fixed(0.2, retries=None, deadline=0.7))
def patient(self):
    record(self)
    raise OSError("down")


@app.task(bind=True, base=DLXRetryTask, name="elsewhere.gives_up", policy=[0.1], autoretry_for=(Exception,))
def gives_up(self):
    record(self)
    self.dead_letter("not worth it")


@app.task(bind=True, base=DLXRetryTask, name="elsewhere.later", max_retries=1)
def later(self):
    """It has no policy."""
    record(self)
    raise RetryIn(0.3)


@app.task(bind=True, base=DLXRetryTask, name="elsewhere.is_killed")
def is_killed(self):
    record(self, redelivered=self.request.delivery_info.get("redelivered"))
    if not self.request.delivery_info.get("redelivered"):
        os.kill(os.getpid(), signal.SIGKILL)
    return "ran again"
