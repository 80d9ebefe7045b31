"""``replay --canary`` asks a result backend how a task ended, and decodes nothing else that is stored there."""

from __future__ import annotations

import json
import pickle
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from celery import Celery

from celery_dlx_retry.operations.canary import states_of


class Bomb:
    """Writes a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (Path.touch, (self.path,))


def a_pickle(path):
    return pickle.dumps({"status": "SUCCESS", "result": Bomb(path), "date_done": "today"})


def an_app(backend, **conf):
    return Celery("results", config_source={"result_backend": backend, **conf}, set_as_current=False)


@pytest.fixture
def database(tmp_path):
    """A result database of Celery's own making with one row, which explodes when its columns are unpickled."""
    bomb = tmp_path / "exploded"
    app = an_app(f"db+sqlite:///{tmp_path / 'results.db'}")
    app.backend.store_result("x", "fine", "SUCCESS")
    with closing(sqlite3.connect(tmp_path / "results.db")) as connection:
        pickled = a_pickle(bomb)
        connection.execute("UPDATE celery_taskmeta SET result = ?, children = ?", (pickled, pickled))
        connection.commit()
    yield app, bomb
    app.backend.session_manager._engines.clear()


def test_canaries_open_no_pickle_of_a_result_database(desk, tmp_path, database):
    _, bomb = database
    desk.bury("x")
    desk.lying(1)
    conf = {**desk.project.conf, "result_backend": f"db+sqlite:///{tmp_path / 'results.db'}"}
    app = Celery("canary", config_source=conf, set_as_current=False)

    done = desk.dlx("replay", "x", "--canary", "1", "--canary-wait", "0.3", "--yes", app=app, code=1)

    assert not bomb.exists()
    assert "canary: 1 not known" in done.stdout  # the state is the one that was stored before


@pytest.mark.parametrize("serializer", ["json", "pickle"])
def test_a_database_tells_states_and_nothing_else_is_read(tmp_path, database, serializer):
    _, bomb = database
    app = an_app(f"db+sqlite:///{tmp_path / 'results.db'}", result_serializer=serializer, accept_content=["pickle"])

    states, why = states_of(app)

    assert why == ""
    assert states("x")[0] == "SUCCESS"
    assert states("nobody") is None
    assert not bomb.exists()


DJANGO = """
import pickle, sys
from pathlib import Path
import django
from django.conf import settings
folder = Path(sys.argv[1])
database = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(folder / "django.db")}
settings.configure(DATABASES={"default": database}, INSTALLED_APPS=["django_celery_results"], USE_TZ=True)
django.setup()
from celery import Celery
from celery.utils.serialization import b64encode
from django.core.management import call_command
from django_celery_results.models import TaskResult
from celery_dlx_retry.operations.canary import states_of
call_command("migrate", verbosity=0)
bomb = b64encode((folder / "pickled").read_bytes())
facts = {"content_type": "application/x-python-serialize", "content_encoding": "binary", "status": "FAILURE"}
TaskResult.objects.create(task_id="x", result=bomb, meta=bomb, task_args=bomb, **facts)
conf = {"result_backend": "django-db", "result_serializer": "pickle", "accept_content": ["pickle"]}
states, why = states_of(Celery("django", config_source=conf, fixups=["celery.fixups.django:fixup"]))
print(why, states("x")[0], states("nobody"))
"""


def test_a_database_of_django_tells_states_and_nothing_else_is_read(tmp_path):
    bomb = tmp_path / "exploded"
    (tmp_path / "pickled").write_bytes(a_pickle(bomb))

    done = subprocess.run(
        [sys.executable, "-c", DJANGO, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[2],
    )

    assert done.stdout.split() == ["FAILURE", "None"], done.stderr
    assert not bomb.exists()


@pytest.fixture(params=["files", "redis"])
def store(request, tmp_path):
    """A backend that keeps each result as one value."""
    if request.param == "files":
        return f"file://{tmp_path}"
    return request.getfixturevalue("redis_url")


def test_a_stored_value_is_read_as_json_only(store, tmp_path):
    bomb = tmp_path / "exploded"
    app = an_app(store)
    app.backend.store_result("done", "x" * 100, "SUCCESS")
    forged = {"exc_type": "SystemExit", "exc_module": "builtins", "exc_message": ["7"]}
    for task_id, value in {
        "pickled": a_pickle(bomb),
        "exception": json.dumps({"status": "FAILURE", "result": forged, "date_done": None}),
        "list": "[1]",
        "deep": "[" * 100_000,
        "nothing": "{}",
        "large": json.dumps({"status": "SUCCESS", "result": "x" * 17 * 2**20}),
    }.items():
        app.backend.set(app.backend.get_key_for_task(task_id), value)

    states, _ = states_of(app)

    assert states("done")[0] == "SUCCESS"
    assert states("exception")[0] == "FAILURE"
    assert [states(it) for it in ("pickled", "list", "deep", "nothing", "large", "absent", "../x", "\0", "\ud800")] == [
        None
    ] * 9
    assert not bomb.exists()


@pytest.mark.parametrize(
    ("backend", "conf", "why"),
    [
        (
            "file:///nowhere",
            {"result_serializer": "pickle"},
            "this app stores its results as pickle, and only plain JSON",
        ),
        ("file:///nowhere", {"result_serializer": "yaml"}, "this app stores its results as yaml, and only plain JSON"),
        ("cache+memory://", {}, "CacheBackend cannot be asked for the state of a task without decoding its result"),
        ("rpc://", {}, "rpc:// gives a result only to the sender of the task"),
    ],
)
def test_other_backends_are_not_asked_at_all(backend, conf, why, tmp_path):
    backend = backend.replace("/nowhere", str(tmp_path))

    states, told = states_of(an_app(backend, **conf))

    assert states is None
    assert told.startswith(why)
