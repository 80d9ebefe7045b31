"""The commands in a Django project with ``autodiscover_tasks()`` and results in the database of the project."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from support import eventually

FILES = {
    "settings.py": """
        import os
        SECRET_KEY = "x"
        USE_TZ = True
        INSTALLED_APPS = ["django_celery_results", "shop"]
        DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "shop.db"}}
        CELERY_BROKER_URL = os.environ["SHOP_BROKER_URL"]
        CELERY_RESULT_BACKEND = "django-db"
        CELERY_TASK_DEFAULT_QUEUE = os.environ["SHOP_PREFIX"] + ".work"
        CELERY_DLX_PREFIX = os.environ["SHOP_PREFIX"]
    """,
    "project.py": """
        import os
        os.environ["DJANGO_SETTINGS_MODULE"] = "settings"
        from celery import Celery
        app = Celery("shop")
        app.config_from_object("django.conf:settings", namespace="CELERY")
        app.autodiscover_tasks()
    """,
    "shop/__init__.py": "",
    "shop/tasks.py": """
        from celery import shared_task
        from celery_dlx_retry import DLXRetryTask

        @shared_task(base=DLXRetryTask)
        def charge(euros):
            return euros + 1
    """,
    "migrate.py": """
        import project, django
        django.setup()
        from django.core.management import call_command
        call_command("migrate", verbosity=0)
        for _ in range(2):
            project.app.send_task("shop.tasks.charge", ["ten"])
    """,
}


@pytest.fixture
def shop(broker, management, prefix, tmp_path):
    """Run a command line in the folder of the project; a worker runs there, too."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(textwrap.dedent(text))
    environment = {
        **os.environ,
        "SHOP_BROKER_URL": broker.url,
        "SHOP_PREFIX": prefix,
        "DLX_MANAGEMENT_URL": (broker.management_url or "") if management else "",
        "PYTHONPATH": os.pathsep.join([str(tmp_path), str(Path.cwd())]),
        "C_FORCE_ROOT": "1",
    }
    environment = {name: value for name, value in environment.items() if value}

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, *words]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=120
        )
        assert "Traceback" not in done.stderr, done.stderr
        return done

    with (tmp_path / "worker.log").open("wb") as log:
        run("migrate.py")
        worker = subprocess.Popen(
            [sys.executable, "-m", "celery", "-A", "project", "worker", "--pool", "solo"],
            cwd=tmp_path, env=environment, stdout=log, stderr=log,
        )  # fmt: skip
        yield lambda *words: run("-m", "celery", "-A", "project", "dlx", *words)
        worker.terminate()
        worker.wait(30)


def test_a_letter_is_edited_and_canaries_are_seen_to_succeed(shop):
    letters = eventually(
        lambda: (it := [json.loads(line) for line in shop("dead", "list", "--json").stdout.splitlines()])[1:] and it,
        within=60,
    )
    ids = [it["task_id"] for it in letters]

    for task_id in ids:
        edited = shop("dead", "edit", task_id, "--set", "euros=10", "--yes")
        assert edited.returncode == 0, edited.stderr
    refused = shop("dead", "edit", ids[0], "--set", "dollars=10", "--yes")
    replayed = shop("dead", "replay", *ids, "--canary", "1", "--yes")

    assert "unexpected keyword argument" in refused.stderr
    assert "canary: 1 succeeded" in replayed.stdout, replayed.stdout + replayed.stderr
    assert "2 replayed" in replayed.stdout
