"""The project for tasks with a policy."""

from __future__ import annotations

import time
from types import SimpleNamespace

from celery.exceptions import Retry, TimeLimitExceeded
from project import app, record

from celery_dlx_retry import DEAD, LET_FAIL, DeadLetter, Delays, DLXRetryTask, Fixed, FullJitter, On, RetryIn


class TooManyRequests(Exception):
    """As clients of HTTP services raise it."""

    def __init__(self, retry_after):
        super().__init__("429")
        self.response = SimpleNamespace(headers={"Retry-After": retry_after})

    def __reduce__(self):
        return TooManyRequests, (self.response.headers["Retry-After"],)


ERRORS = {
    "OSError": OSError("down"),
    "KeyError": KeyError("order"),
    "TypeError": TypeError("wrong"),
    "AssertionError": AssertionError("let it"),
    "ValueError": ValueError("temporary"),
    "TooManyRequests": TooManyRequests("0.3"),
    "RetryIn": RetryIn(0.3),
    "much later": RetryIn(100_000),
    "DeadLetter": DeadLetter("enough"),
}
RULES = [
    On(KeyError, Delays([0.1, 0.2])),
    On(TypeError, DEAD),
    On(AssertionError, LET_FAIL),
    On(lambda error: "temporary" in str(error), 0.05),
]


@app.task(bind=True, base=DLXRetryTask, name="policies.ruled", policy=Fixed(0.15, retries=1, rules=RULES))
def ruled(self, *errors):
    """Raise one error after the other, the last one again and again."""
    record(self)
    raise ERRORS[errors[min(self.request.retries, len(errors) - 1)]]


@app.task(base=DLXRetryTask, name="policies.chained", policy=Fixed(5, retries=1))
def chained():
    try:
        {}["order"]
    except KeyError as missing:
        raise OSError("down") from missing


@app.task(bind=True, base=DLXRetryTask, name="policies.patient", policy=Fixed(0.2, retries=None, deadline=0.7))
def patient(self):
    record(self)
    raise OSError("down")


@app.task(bind=True, base=DLXRetryTask, name="policies.spread", policy=Fixed(0.5, retries=1, jitter=FullJitter()))
def spread(self):
    record(self)
    raise OSError("down")


@app.task(bind=True, base=DLXRetryTask, name="policies.asks", policy=Fixed(0.15, retries=2))
def asks(self, **options):
    record(self)
    raise self.retry(exc=OSError("down"), **options)


@app.task(bind=True, base=DLXRetryTask, name="policies.both", policy=[0.1, 0.2], autoretry_for=(OSError,))
def both(self):
    record(self)
    raise OSError("down")


def two_fifths_at_most(retry, _error):
    return retry / 5 if retry < 3 else None


@app.task(bind=True, base=DLXRetryTask, name="policies.function", policy=two_fifths_at_most)
def function(self):
    record(self)
    raise OSError("down")


def faulty(_retry, _error):
    return {}["no such delay"]


@app.task(bind=True, base=DLXRetryTask, name="policies.faulty", policy=faulty)
def has_a_faulty_policy(self):
    record(self)
    raise OSError("down")


@app.task(bind=True, base=DLXRetryTask, name="policies.gives_up", autoretry_for=(Exception,), default_retry_delay=0.1)
def gives_up(self):
    record(self)
    self.dead_letter("not worth it")


@app.task(bind=True, base=DLXRetryTask, name="policies.raises", autoretry_for=(Exception,), default_retry_delay=0.1)
def raises(self):
    record(self)
    raise DeadLetter("not worth it either")


@app.task(bind=True, base=DLXRetryTask, name="policies.has_none")
def has_none(self, countdown):
    record(self)
    raise self.retry(countdown=countdown)


@app.task(bind=True, base=DLXRetryTask, name="policies.by_hand")
def by_hand(self):
    record(self)
    if self.request.retries == 0:
        raise Retry("without retry() nothing is published", when=0.1)


@app.task(
    bind=True,
    base=DLXRetryTask,
    name="policies.overruns",
    time_limit=1,
    policy=Fixed(0.15, retries=1, rules=[On(TimeLimitExceeded, [0.1, 0.1])]),
)
def overruns(self):
    record(self)
    if self.request.retries == 0:
        raise OSError("down")
    time.sleep(60)  # noqa: TID251


@app.task(
    bind=True, base=DLXRetryTask, name="policies.asks_late", policy=Fixed(0.15, retries=2, rules=[On(KeyError, 0.05)])
)
def asks_late(self, **options):
    record(self)
    if self.request.retries < 2:
        raise KeyError("order")
    raise self.retry(exc=OSError("down"), **options)


@app.task(bind=True, base=DLXRetryTask, name="policies.later", max_retries=2)
def later(self, seconds):
    record(self)
    raise RetryIn(seconds)


@app.task(
    bind=True,
    base=DLXRetryTask,
    name="policies.later_by_itself",
    autoretry_for=(Exception,),
    retry_backoff=60,
    retry_kwargs={"max_retries": 2},
)
def later_by_itself(self, seconds):
    record(self)
    raise RetryIn(seconds)
