"""Tasks whose numbers are known: how often each is retried, recovers, dies, or is parked."""

from __future__ import annotations

import logging
import os

from celery.exceptions import Reject
from project import app

from celery_dlx_retry import Breaker, Budget, DLXRetryTask, Fixed

__all__ = ["app"]

if os.environ.get("PROJECT_HOOKS") == "raise":
    from prometheus_client import CollectorRegistry

    from celery_dlx_retry import signals
    from celery_dlx_retry.contrib import prometheus
    from celery_dlx_retry.events import subscribe

    logger = logging.getLogger("hooks")

    class Panic(BaseException):
        pass

    def fail(sender, event, **_):
        logger.warning("hook %s of %r", type(event).__name__, sender)
        raise RuntimeError("the pager is down")

    def panic(event):
        raise Panic(f"a subscriber at {type(event).__name__}")

    def panic_in_main(event):
        raise Panic(f"a subscriber in the main process at {type(event).__name__}")

    class BrokenMetrics(prometheus.Metrics):
        def __call__(self, event, /):
            super().__call__(event)
            raise MemoryError("the registry is full")

    for each in signals.SIGNALS.values():
        each.connect(fail)
    subscribe(panic)
    subscribe(panic_in_main, in_main=True)
    prometheus.Metrics = BrokenMetrics
    prometheus.install(CollectorRegistry())

if os.environ.get("PROJECT_HOOKS") == "exit":
    from celery_dlx_retry.events import subscribe

    def end_once(event):
        """End the process at the first event of this kind."""
        if type(event).__name__ == os.environ["PROJECT_EXIT"]:
            mark = os.environ["PROJECT_RECORDS"]
            with open(mark, "a") as records:  # noqa: PTH123 - a mark for the next process
                if records.tell() == 0:
                    records.write("ended\n")
                    records.flush()
                    raise SystemExit(3)

    subscribe(end_once)

if os.environ.get("PROJECT_HOOKS") == "install":
    from prometheus_client import CollectorRegistry, start_http_server

    from celery_dlx_retry.contrib.prometheus import install

    registry = CollectorRegistry()
    install(registry)
    install(registry)
    if os.environ.get("PROJECT_PORT"):
        start_http_server(int(os.environ["PROJECT_PORT"]), registry=registry)


@app.task(bind=True, base=DLXRetryTask, name="metrics.flaky", policy=Fixed(0.1, retries=5))
def flaky(self, failures):
    """Fail so many times, then succeed: the main process publishes these retries."""
    if self.request.retries < failures:
        raise TimeoutError("the bank does not answer")


@app.task(bind=True, base=DLXRetryTask, name="metrics.changed")
def changed(self, left):
    """Be retried with other arguments: Celery writes the message in the pool process."""
    if left:
        raise self.retry(args=(left - 1,), countdown=0.1, exc=ValueError(f"{left} are left"))


@app.task(bind=True, base=DLXRetryTask, name="metrics.quiet")
def quiet(self, failures):
    """Go on after retry(): the pool process publishes the retry itself."""
    if self.request.retries < failures:
        self.retry(countdown=0.1, throw=False, exc=KeyError("gone"))


@app.task(base=DLXRetryTask, name="metrics.doomed", policy=Fixed(0.1, retries=1))
def doomed():
    raise ConnectionError("for ever")


@app.task(base=DLXRetryTask, name="metrics.rejected")
def rejected():
    raise Reject("no", requeue=False)


@app.task(base=DLXRetryTask, name="metrics.many", policy=Fixed(0.1, retries=0))
def many(number):
    raise type(f"Error{number}", (Exception,), {})(f"text {number}")


@app.task(base=DLXRetryTask, name="metrics.held", policy=Fixed(0.1, retries=0), breaker=Breaker(1, probe_every=600))
def held():
    raise ConnectionError("down")


@app.task(base=DLXRetryTask, name="metrics.trips", policy=Fixed(0.1, retries=0), breaker=Breaker(1, probe_every=0.2))
def trips(fails):
    if fails:
        raise ConnectionError("down")


@app.task(
    bind=True, base=DLXRetryTask, name="metrics.spends", policy=Fixed(0.1, retries=3), budget=Budget(0.5, reserve=4)
)
def spends(self, failures):
    if self.request.retries < failures:
        raise ConnectionError("down")
