"""What an app gives to all of its tasks, those with base=DLXRetryTask have, too: Flask's context, Django's commit."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import textwrap
from abc import ABC

import pytest
from celery import Celery, Task, _state, shared_task
from support import eventually

from celery_dlx_retry import DLXRetryTask
from celery_dlx_retry.worker.request import DLXRequest

calls = []


class Contextual(Task):
    """Flask's recipe, and what other bases have."""

    max_retries = 7
    autoretry_for = (ConnectionError,)

    def __init__(self):
        self.users = {}

    def __call__(self, *args, **kwargs):
        calls.append(self.name)
        return self.run(*args, **kwargs)

    def apply_async(self, *args, **options):
        calls.append("apply_async")
        return super().apply_async(*args, **options)


def body():
    return "run"


def app_with(task_cls=None):
    calls.clear()
    app = Celery("lineage", broker="memory://", task_cls=task_cls, set_as_current=False)
    app.conf.task_default_queue = "lineage"  # all of a process share memory://
    return app


def task_of(app, **options):
    options = {"base": DLXRetryTask, "name": "lineage.task", "shared": False, "lazy": False, **options}
    return app.task(**options)(body)


def test_the_apps_own_class_is_kept_with_what_it_does_and_sets():
    task = task_of(app_with(Contextual))

    assert task.apply().get() == "run"
    assert isinstance(task, Contextual)
    assert calls == ["lineage.task"]
    assert (task.users, task.max_retries, task.autoretry_for) == ({}, 7, (ConnectionError,))
    task.apply_async()
    assert calls[-1] == "apply_async"


def test_what_keeps_a_message_stays_ours_and_the_guard_stands_around_the_body():
    class Hasty(Contextual):
        acks_late = False
        Request = "celery.worker.request:Request"

    task = task_of(app_with(Hasty))

    assert task.acks_late
    assert task.Request == f"{DLXRequest.__module__}:{DLXRequest.__name__}"
    assert hasattr(type(task).__call__, "__dlx__")


def test_a_bound_class_of_the_app_does_not_bring_celerys_acks_late():
    app = app_with(Contextual)
    assert app.Task.app is app
    assert app.Task.acks_late is False

    assert task_of(app).acks_late


def test_options_of_the_task_win_over_those_of_the_apps_class():
    task = task_of(app_with(Contextual), max_retries=1, policy=[5])

    assert task.max_retries == 1
    assert task.policy.retries == 1


@pytest.mark.parametrize(
    "task_cls", [f"{__name__}:Contextual", type("Abstract", (Contextual, ABC), {})], ids=["string", "abc"]
)
def test_a_class_is_kept_that_is_named_or_has_a_metaclass(task_cls):
    assert isinstance(task_of(app_with(task_cls)), Contextual)


def test_a_class_that_was_put_on_the_app_is_kept():
    app = app_with()

    class ContextTask(app.Task):
        def __call__(self):
            return f"with context: {self.run()}"

    app.Task = ContextTask

    assert task_of(app)() == "with context: run"


def test_an_app_without_a_class_of_its_own_and_a_class_that_derives_itself_are_left_as_they_are():
    class Own(DLXRetryTask):
        abstract = True

    plain, derived = task_of(app_with()), task_of(app_with(Contextual), base=Own)

    assert type(plain).__bases__ == (DLXRetryTask,)
    assert type(derived).__bases__ == (Own,)
    assert not isinstance(derived, Contextual)


def test_a_class_of_the_app_that_is_one_of_ours_already_is_the_base():
    class Ours(DLXRetryTask):
        def __call__(self):
            return f"with context: {self.run()}"

    app = app_with(Ours)

    assert type(task_of(app)).__bases__ == (app.Task,)
    assert task_of(app)() == "with context: run"


def test_a_shared_task_is_in_each_app_what_that_app_makes_of_it(monkeypatch):
    monkeypatch.setattr(
        _state, "_on_app_finalizers", {*_state._on_app_finalizers}
    )  # later tests' apps are not to have it

    @shared_task(base=DLXRetryTask, name="lineage.shared")
    def shared():
        """What several apps run."""

    with_context, without = app_with(Contextual), app_with()
    mine, plain = (app.tasks["lineage.shared"] for app in (with_context, without))

    assert isinstance(mine, Contextual)
    assert not isinstance(plain, Contextual)
    assert mine.__doc__ == plain.__doc__ == "What several apps run."
    monkeypatch.setattr(_state._tls, "current_app", with_context)
    assert pickle.loads(pickle.dumps(mine)) is mine  # noqa: S301 - our own


def test_a_class_with_names_of_ours_is_done_without_and_that_is_said(caplog):
    class Guarded(Task):
        policy = "admins only"

    task = task_of(app_with(Guarded))

    assert (task.policy, isinstance(task, Guarded)) == (None, False)
    assert "does without the app's task class" in caplog.text
    assert caplog.text.strip().endswith("names of ours: policy")


def test_flasks_recipe_gives_its_context_to_a_task_with_our_base(project):
    project.start(module="project_kept").wait_until_ready()

    healed, failed = (project.app.send_task("kept.ask", (wish,)) for wish in ("heal", "fail"))

    assert healed.get(timeout=20) == "heal"
    assert [run["context"] for run in project.records(id=healed.id)] == ["kept", "kept"]
    (letter,) = eventually(project.dead)
    assert (letter.record.task_id, letter.record.reason) == (failed.id, "failed")


SETTINGS = """
    SECRET_KEY = "x"
    DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
    CELERY_BROKER_URL = "@url@"
    CELERY_TASK_DEFAULT_QUEUE = "@prefix@.work"
    CELERY_DLX_PREFIX = "@prefix@"
"""
DJANGO = """
    import json, os, sys
    os.environ["DJANGO_SETTINGS_MODULE"] = "settings"

    from celery import Celery, shared_task
    from celery.signals import before_task_publish
    from celery_dlx_retry import DLXRetryTask

    how = sys.argv[1]
    adopted = how in {"whole app", "class of the app"}
    app = Celery("remind", **({"task_cls": "celery_dlx_retry:DLXRetryTask"} if adopted else {}))
    app.config_from_object("django.conf:settings", namespace="CELERY")

    def body():
        pass

    class Own(DLXRetryTask):
        abstract = True

        def delay_on_commit(self, *args):
            return super().delay_on_commit(*args)

    if how == "class of the app":
        class Remind(app.Task):
            name = "remind"

            def run(self):
                pass

        remind = app.register_task(Remind())
    else:
        decorate = app.task if how == "task" else shared_task
        base = {} if adopted else {"base": Own if how == "own base" else DLXRetryTask}
        remind = decorate(name="remind", **base)(body)

    sent = []
    before_task_publish.connect(lambda exchange, **_: sent.append(exchange), weak=False)

    import django
    django.setup()
    from django.db import transaction
    with transaction.atomic():
        remind.delay_on_commit()
        remind.apply_async_on_commit(countdown=3600)
        before = len(sent)
    try:
        with transaction.atomic():
            remind.delay_on_commit()
            raise KeyError
    except KeyError:
        pass
    print(json.dumps([before, sent, isinstance(app.tasks["remind"], DLXRetryTask)]))
"""


@pytest.mark.parametrize("how", ["task", "shared task", "own base", "whole app", "class of the app"])
def test_in_django_a_task_is_sent_on_commit_and_its_countdown_waits_in_the_broker(broker, prefix, tmp_path, how):
    settings = textwrap.dedent(SETTINGS).replace("@url@", broker.url).replace("@prefix@", prefix)
    (tmp_path / "settings.py").write_text(settings)

    before, sent, is_ours = json.loads(run(DJANGO, how, folder=tmp_path))

    assert (before, is_ours) == (0, True)
    (at_once, later) = sent
    assert at_once == ""
    assert later.startswith(f"{prefix}.v1.ladder.")


WITHOUT_DJANGO = """
    import sys
    from celery import Celery
    from celery_dlx_retry import DLXRetryTask

    app = Celery("plain", broker="memory://", task_cls="celery_dlx_retry:DLXRetryTask")
    @app.task(base=DLXRetryTask)
    def task():
        pass

    print(hasattr(task, "delay"), hasattr(task, "delay_on_commit"), "django.db" in sys.modules)
"""


def test_without_django_nothing_of_it_is_there(tmp_path):
    assert run(WITHOUT_DJANGO, folder=tmp_path) == "True False False\n"


def run(code, *arguments, folder):
    command = [sys.executable, "-W", "error::DeprecationWarning", "-c", textwrap.dedent(code), *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout
