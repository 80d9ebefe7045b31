"""The project as Flask's documentation has it: a task class that runs bodies inside a context, and other overrides."""

from __future__ import annotations

import functools
from contextlib import contextmanager
from typing import ClassVar

from celery import Task, current_task
from project import app, record

from celery_dlx_retry import DLXRetryTask

context = []


def around(hook):
    def annotated(self, *args):
        record(self, "annotation")
        return hook(self, *args)

    return annotated


# Celery reads it once, at the first task that is registered.
app.conf.task_annotations = {"flask.Annotated": {"@before_start": around}}


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


class CallsSuper(Task):
    """The recipe of other packages: it calls super()."""

    abstract = True

    def __call__(self, *args, **kwargs):
        with app_context():
            return super().__call__(*args, **kwargs)


class MixedPolite(CallsSuper, DLXRetryTask):
    abstract = True


class Theirs(DLXRetryTask, FlaskTask):
    """The order of our pages: their __call__ comes after ours."""

    abstract = True


class TheirsPolite(DLXRetryTask, CallsSuper):
    abstract = True


class TheirsLater(Theirs):
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


class Once(Task):
    """As packages have it that run a task only once: while one runs, none is sent. Here it lets go at the second."""

    abstract = True
    locks: ClassVar = []

    def apply_async(self, *args, **options):
        if not self.locks:
            self.locks.append(self.request.id)
            return self.AsyncResult(self.request.id)
        return super().apply_async(*args, **options)


class Locked(Once, DLXRetryTask):
    abstract = True


class Keeps(Task):
    """Keeps some retries to itself, once in each process, and comes after ours."""

    abstract = True
    kept: ClassVar = []

    def apply_async(self, *args, **options):
        task_id = self.request.id
        if task_id.startswith("keep") and task_id not in self.kept:
            self.kept.append(task_id)
            return self.AsyncResult(task_id)
        return super().apply_async(*args, **options)


class Below(DLXRetryTask, Keeps):
    abstract = True


def body(self, wish="heal"):
    record(self, context=list(context), requests=len(self.request_stack))
    if wish == "fail":
        raise ValueError("no luck")
    if wish in {"heal", "go on"} and self.request.retries == 0:
        self.retry(countdown=0.1, throw=wish == "heal")
    return wish


for base in (
    *(Mixed, Direct, Polite, Grandchild, MixedPolite, Theirs, TheirsPolite, TheirsLater),
    *(Checks, Locked, Below),
):
    app.task(body, bind=True, base=base, name=f"flask.{base.__name__}")


class OfItsOwn(Direct):
    """A class-based task."""

    name = "flask.OfItsOwn"

    def run(self, wish="heal"):
        return body(self, wish)


app.register_task(OfItsOwn())


def check(task_id, args, kwargs):  # noqa: ARG001
    record(current_task, "before_start", given=[task_id, args])
    if args[0] == "refuse":
        raise PermissionError("not today")


class Checker:
    """A callable object: Python binds it to no task."""

    def __call__(self, task_id, args, kwargs):
        check(task_id, args, kwargs)


class Static(DLXRetryTask):
    abstract = True
    before_start = staticmethod(check)


class OfTheClass(DLXRetryTask):
    abstract = True

    @classmethod
    def before_start(cls, task_id, args, kwargs):
        assert issubclass(cls, OfTheClass)
        check(task_id, args, kwargs)


class Callable(DLXRetryTask):
    abstract = True
    before_start = Checker()


class Partial(DLXRetryTask):
    abstract = True

    def check_more(self, more, task_id, args, kwargs):
        assert (self.name, more) == ("flask.Partial", "more")
        check(task_id, args, kwargs)

    before_start = functools.partialmethod(check_more, "more")


class Read(DLXRetryTask):
    abstract = True

    @property
    def before_start(self):
        return Checker()


class Inherited(Static):
    abstract = True


for base in (Static, OfTheClass, Callable, Partial, Read, Inherited):
    app.task(body, bind=True, base=base, name=f"flask.{base.__name__}")
app.task(body, bind=True, base=DLXRetryTask, name="flask.Option", before_start=Checker())
app.task(body, bind=True, base=DLXRetryTask, name="flask.NoHook", before_start=None)


class Set(DLXRetryTask):
    """Celery calls the attribute of the instance if the class has a hook."""

    name = "flask.Set"

    def __init__(self):
        self.before_start = Checker()

    def before_start(self, *_):
        raise AssertionError

    def run(self, wish="heal"):
        return body(self, wish)


app.register_task(Set())


class Annotated(DLXRetryTask):
    abstract = True

    def before_start(self, task_id, args, kwargs):
        assert self.name == "flask.Annotated"
        check(task_id, args, kwargs)


app.task(body, bind=True, base=Annotated, name="flask.Annotated")
