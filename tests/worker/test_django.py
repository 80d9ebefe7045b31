"""In a Django project Celery's tasks can be sent when a transaction is committed, and so can ours."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap

import pytest

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
    assert later.startswith(f"{prefix}.v2.ladder.")


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
