"""The project with a task that has both our class and a strategy that collects messages, as celery-batches has it."""

from __future__ import annotations

from celery import Task
from project import app

from celery_dlx_retry import DLXRetryTask


class Batches(Task):
    abstract = True

    def Strategy(self, task, app, consumer, **_):  # noqa: ARG002, N802 - Celery's name
        return lambda *_args, **_kwargs: None


class Both(DLXRetryTask, Batches):
    abstract = True


@app.task(base=Batches, name="strategy.theirs")
def theirs(requests):
    """Never run."""


@app.task(base=Both, name="strategy.both")
def both(requests):
    """Never run."""
