"""The project as Flask's documentation has it: a task class that runs bodies inside a context, and other overrides."""

from __future__ import annotations

from contextlib import contextmanager

from celery import Task
from project import app, record

from celery_dlx_retry import DLXRetryTask

context = []


@contextmanager
def app_context():
    context.append("open")
    try:
        yield
    finally:
        context.pop()


class FlaskTask(Task):
    """The recipe, word for word: it calls run() and not super()."""

    abstract = True

    def __call__(self, *args, **kwargs):
        with app_context():
            return self.run(*args, **kwargs)


class Mixed(FlaskTask, DLXRetryTask):
    abstract = True


class Direct(DLXRetryTask):
    abstract = True

    def __call__(self, *args, **kwargs):
        with app_context():
            return self.run(*args, **kwargs)


class Polite(DLXRetryTask):
    abstract = True

    def __call__(self, *args, **kwargs):
        with app_context():
            return super().__call__(*args, **kwargs)


class Grandchild(Direct):
    abstract = True


class Checks(DLXRetryTask):
    """A before_start that may raise, and hooks that do not call super()."""

    abstract = True

    def before_start(self, task_id, args, kwargs):  # noqa: ARG002
        record(self, "before_start")
        if args[0] == "refuse":
            raise PermissionError("not today")
        if args[0] == "later" and self.request.retries == 0:
            raise self.retry(countdown=0.1)

    def on_failure(self, exc, *_):
        record(self, "on_failure", error=repr(exc))

    def on_retry(self, exc, *_):
        record(self, "on_retry", error=repr(exc))

    def after_return(self, *_):
        record(self, "after_return")


def body(self, wish="heal"):
    record(self, context=list(context))
    if wish == "fail":
        raise ValueError("no luck")
    if wish == "heal" and self.request.retries == 0:
        raise self.retry(countdown=0.1)
    return wish


for base in (Mixed, Direct, Polite, Grandchild, Checks):
    app.task(body, bind=True, base=base, name=f"flask.{base.__name__}")


class OfItsOwn(Direct):
    """A class-based task."""

    name = "flask.OfItsOwn"

    def run(self, wish="heal"):
        return body(self, wish)


app.register_task(OfItsOwn())
