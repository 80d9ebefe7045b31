"""Every task twice, once as Celery's own and once as ours, with all that Celery tells about them written down."""

from __future__ import annotations

import functools

from celery import Task, signals
from celery.exceptions import Ignore, MaxRetriesExceededError, Reject
from project import app, record

from celery_dlx_retry import DLXRetryTask


class Told:
    """A mixin that records the hooks."""

    def before_start(self, *_):
        record(self, "before_start", delivery_info=dict(self.request.delivery_info), eta=self.request.eta)

    def on_retry(self, exc, *_):
        record(self, "on_retry", error=repr(exc))

    def on_failure(self, exc, *_):
        record(self, "on_failure", error=repr(exc))

    def on_success(self, *_):
        record(self, "on_success")

    def after_return(self, status, *_):
        record(self, "after_return", status=status)


class Plain(Told, Task):
    abstract = True
    acks_late = True


class Ours(Told, DLXRetryTask):
    abstract = True


def tell(event, sender=None, task_id=None, request=None, **_):
    if sender.name.startswith(("twins.plain.", "twins.ours.")):
        record(sender, event, id=task_id or (request or sender.request).id)


for told in ("task_prerun", "task_postrun", "task_retry", "task_failure", "task_success", "task_revoked",
             "task_internal_error"):  # fmt: skip
    # Celery's other signals have no task for a sender, or are about messages: a lane is one, and Celery's ETA is not.
    getattr(signals, told).connect(functools.partial(tell, told), weak=False)


def twins(**options):
    def make(body):
        for base in (Plain, Ours):
            name = f"twins.{base.__name__.lower()}.{body.__name__}"
            app.task(body, bind=True, base=base, name=name, **options)
        return body

    return make


@app.task(bind=True, name="twins.errback")
def errback(self, failed_id):
    record(self, "errback", failed=failed_id)


@app.task(name="twins.errback_with_details")
def errback_with_details(request, exc, _traceback):
    # Celery calls this kind in the place of the failure, and not as a task of its own; it must not be bound.
    record(errback, "errback_with_details", failed=request.id, error=repr(exc))


@app.task(bind=True, name="twins.callback")
def callback(self, result, of):
    record(self, "callback", of=of, result=result)


@twins()
def retries_then_succeeds(self):
    if self.request.retries < 2:
        raise self.retry(countdown=0.1)
    return "well"


@twins(max_retries=2, default_retry_delay=0.1)
def is_exhausted(self):
    try:
        int("always")
    except ValueError as exc:
        raise self.retry(exc=exc) from exc


@twins(max_retries=1)
def is_exhausted_without_an_error(self):
    raise self.retry(countdown=0.1)


@twins(max_retries=1)
def is_exhausted_and_knows_what_to_do(self):
    try:
        self.retry(countdown=0.1)
    except MaxRetriesExceededError:
        return "well"


@twins()
def retries_with_a_countdown_that_has_passed(self):
    if self.request.retries == 0:
        raise self.retry(countdown=-5)


@twins()
def fails(self):
    record(self, "run")
    raise ValueError("once")


@twins()
def rejects(self):
    record(self, "run")
    raise Reject("not mine", requeue=False)


@twins()
def rejects_and_requeues(self):
    if not self.request.delivery_info["redelivered"]:
        raise Reject("not now", requeue=True)


@twins()
def ignores(self):
    record(self, "run")
    raise Ignore


@twins(autoretry_for=(ValueError,), max_retries=2, default_retry_delay=0.1)
def autoretries_to_the_end(self):
    record(self, "run")
    raise ValueError("always")


@twins(autoretry_for=(ValueError,), dont_autoretry_for=(UnicodeError,), default_retry_delay=0.1)
def autoretries_all_but_some(self):
    if self.request.retries == 0:
        raise ValueError("retried")
    raise UnicodeError("not retried")


@twins(autoretry_for=(OSError,), retry_kwargs={"throw": False, "max_retries": 1, "countdown": 0.1})
def autoretries_without_throwing(_):
    raise OSError("always")


@twins(autoretry_for=(ValueError,), retry_kwargs={"max_retries": 1, "countdown": 0.1})
def autoretries_with_kwargs(self):
    record(self, "run")
    raise ValueError("always")


@twins(autoretry_for=(ValueError,), max_retries=2, retry_backoff=True, retry_jitter=False)
def autoretries_with_backoff(self):
    record(self, "run")
    raise ValueError("always")


@twins(autoretry_for=(ValueError,), max_retries=2, retry_backoff=2, retry_backoff_max=1, retry_jitter=False)
def autoretries_with_limited_backoff(self):
    record(self, "run")
    raise ValueError("always")


@twins(autoretry_for=(ValueError,), max_retries=2, retry_backoff=True, retry_backoff_max=1)
def autoretries_with_jitter(self):
    record(self, "run")
    raise ValueError("always")


@twins(max_retries=9)
def overrides_max_retries(self):
    raise self.retry(countdown=0.1, max_retries=1)


@twins(autoretry_for=(ValueError,), max_retries=9, default_retry_delay=0.1)
def overrides_max_retries_under_autoretry(self):
    raise self.retry(exc=ValueError("always"), max_retries=1)


@twins()
def retries_and_goes_on(self):
    if self.request.retries == 0:
        self.retry(countdown=0.1, throw=False)
    return "well"


@twins()
def retries_and_fails(self):
    if self.request.retries == 0:
        self.retry(countdown=0.1, throw=False)
        raise ValueError("after that")


@twins(autoretry_for=(ValueError,), max_retries=1, default_retry_delay=0.1)
def sometimes_wants_more(self, more=None):
    record(self, "run")
    if more:
        raise self.retry(countdown=0.1, max_retries=more)
    raise ValueError("always")


def takes_anything(self, /, **kwargs):
    if self.request.retries == 0:
        raise self.retry(countdown=0.1)
    return kwargs


def takes_anything_unbound(**kwargs):
    return kwargs


for base in (Plain, Ours):
    kind = base.__name__.lower()
    app.task(takes_anything, bind=True, base=base, name=f"twins.{kind}.takes_anything")
    app.task(takes_anything_unbound, base=base, name=f"twins.{kind}.takes_anything_unbound")
