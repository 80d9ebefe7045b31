"""The project for countdowns and etas."""

from __future__ import annotations

from project import app, record

from celery_dlx_retry import DLXRetryTask

app.conf.timezone = "Asia/Tokyo"  # so that a wrong reading of a naive eta shows


@app.task(bind=True, base=DLXRetryTask, name="later.note", default_retry_delay=0.7)
def note(self, *args):
    """Write down that it ran, and what it knows of its appointment."""
    request = self.request
    record(self, eta=request.eta, expires=request.expires, args=args, headers=sorted(request.headers or ()))
    return sum(args) if args else None


@app.task(bind=True, base=DLXRetryTask, name="later.total")
def total(self, numbers):
    record(self, numbers=numbers)
    return sum(numbers)


@app.task(bind=True, base=DLXRetryTask, name="later.send")
def send(_self, countdown):
    """Make an appointment from inside a worker."""
    return note.apply_async((1, 2), countdown=countdown).id


@app.task(bind=True, base=DLXRetryTask, name="later.retry")
def retry(self):
    record(self)
    if self.request.retries == 0:
        raise self.retry(countdown=0.2)
    return "came back"
