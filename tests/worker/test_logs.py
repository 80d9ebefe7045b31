"""The recipes of docs/logs.md in a real worker: every line about a task names it, also those of the main process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap

import pytest
from support import eventually

from tests.worker.stage import stage

TEXT = "4111 1111 1111 1111"  # of all errors and arguments
JSON, JSON_LOGGER = "JSON/0", "JSON/1"
TASK_FORMATTER, STRUCTLOG = "Show the task in text logs/0", "structlog/0"
# With solo and threads the main process runs tasks, too.
RECIPES = [(JSON, "prefork"), (JSON_LOGGER, "prefork"), (STRUCTLOG, "prefork"), (STRUCTLOG, "solo"), (JSON, "threads")]


def lines(worker):
    """The JSON lines of a log; the worker's banner is not one."""
    whole = worker.log.rpartition("\n")[0]
    return [json.loads(it) for it in whole.splitlines() if it.startswith("{")]


def about(worker, task_id, event):
    return [it for it in lines(worker) if it.get("dlx_event") == event and it["dlx_task_id"] == task_id]


@pytest.mark.parametrize(("recipe", "pool"), RECIPES)
def test_every_line_of_ours_is_json_with_the_task_and_without_the_text_of_an_error(project, monkeypatch, recipe, pool):
    monkeypatch.setenv("PROJECT_LOGS", recipe)
    with project.worker(module="project_logs", pool=pool, concurrency=1) as worker:
        healed = project.app.send_task("logs.ours", ("policy",))
        dead = project.app.send_task("logs.dies")
        project.app.send_task("unknown.task")
        eventually(lambda: about(worker, healed.id, "RetryScheduled") and about(worker, dead.id, "DeadLettered"))
        assert healed.get(timeout=20) is None
        eventually(lambda: len(project.dead()) == 2)
        unknown = eventually(lambda: [it for it in lines(worker) if it.get("dlx_task") == "unknown.task"])

    ours = [it for it in lines(worker) if "dlx_event" in it]
    retried, died = (about(worker, *it)[0] for it in ((healed.id, "RetryScheduled"), (dead.id, "DeadLettered")))
    assert (retried["task_name"], retried["task_id"]) == ("logs.ours", healed.id)
    assert (retried["dlx_queue"], retried["dlx_delay_ms"], retried["dlx_error_type"]) == (
        project.queue, 100, "ValueError",
    )  # fmt: skip
    assert (died["task_name"], died["task_id"], died["dlx_reason"]) == ("logs.dies", dead.id, "failed")
    assert unknown[0]["dlx_reason"] == "unknown-task"
    assert {it["dlx_event"] for it in ours} >= {"TopologyStands", "RetryScheduled", "DeadLettered"}
    assert TEXT not in json.dumps(ours)


def test_a_hard_time_limit_and_a_crash_name_the_task_in_lines_of_the_main_process(project, monkeypatch):
    monkeypatch.setenv("PROJECT_LOGS", TASK_FORMATTER)
    with project.worker(module="project_logs", concurrency=1) as worker:
        slow = project.app.send_task("logs.limited", ("slow",))
        crashes = project.app.send_task("logs.ours", ("crashes",))
        plain = project.app.send_task("logs.ours", ("policy",))
        for result in (slow, crashes, plain):
            assert result.get(timeout=40) is None
        eventually(lambda: worker.log.count("retry scheduled") == 3)

    log = worker.log
    assert f"WARNING logs.limited[{slow.id}] Hard time limit" in log
    for name, result in (("limited", slow), ("ours", crashes), ("ours", plain)):
        assert f"INFO logs.{name}[{result.id}] retry scheduled" in log
    assert "INFO ???[???] topology stands" in log


def test_without_a_recipe_a_line_is_as_before(project):
    with project.worker(module="project_logs", concurrency=1) as worker:
        result = project.app.send_task("logs.ours", ("policy",))
        assert result.get(timeout=20) is None

    assert f"retry scheduled task=logs.ours id={result.id} retry=1 delay_ms=100 queue={project.queue}" in worker.log


SENDER = """
    import json, sys
    from types import SimpleNamespace
    import structlog
    from celery import Celery
    import django
    from django.conf import settings
    settings.configure(INSTALLED_APPS=["django_structlog"], DJANGO_STRUCTLOG_CELERY_ENABLED=True, SECRET_KEY="x")
    django.setup()

    app = Celery("web", set_as_current=True)
    app.conf.update(json.loads(sys.argv[1]))

    from django.http import HttpResponse
    from django.test import RequestFactory
    from django_structlog.middlewares import RequestMiddleware

    ids = []

    def view(request):
        ids.append(structlog.contextvars.get_contextvars()["request_id"])
        for name, args in json.loads(sys.argv[2]):
            ids.append(app.send_task(name, args).id)
        return HttpResponse()

    request = RequestFactory().get("/")
    request.user = SimpleNamespace(pk=1)
    RequestMiddleware(view)(request)
    print(json.dumps(ids))
"""
SENT = {
    "plain": ["logs.plain", ["policy"]],
    "policy": ["logs.ours", ["policy"]],
    "changed": ["logs.ours", ["changed"]],
    "slow": ["logs.limited", ["slow"]],
    "crashes": ["logs.ours", ["crashes"]],
    "dies": ["logs.dies", []],
}


@pytest.fixture(scope="module")
def seen(request):
    """The lines of each task in a worker with django-structlog; a view of Django sent them."""
    with stage(request) as project, pytest.MonkeyPatch.context() as patch:
        patch.setenv("PROJECT_LOGS", STRUCTLOG)
        patch.setenv("PROJECT_DJANGO", "1")
        worker = project.start(module="project_logs", concurrency=1).wait_until_ready()
        command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(SENDER), json.dumps(project.conf)]
        done = subprocess.run(
            [*command, json.dumps([*SENT.values()])],
            capture_output=True, text=True, check=False, timeout=60, env=dict(os.environ),
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        request_id, *task_ids = json.loads(done.stdout.splitlines()[-1])
        ids = dict(zip(SENT, task_ids, strict=True))

        def bodies(way, least):
            found = [it for it in lines(worker) if it.get("task_id") == ids[way] and "body of" in it["event"]]
            return len(found) >= least

        eventually(lambda: len(project.dead()) == 1, within=40)
        for way in ("plain", "policy", "changed", "slow", "crashes"):
            eventually(lambda way=way: bodies(way, 2), within=60)
        replay = project.celery("dlx", "dead", "replay", "--yes", "--all")
        assert replay.returncode == 0, replay.stderr + replay.stdout
        eventually(lambda: bodies("dies", 2), within=40)
        worker.stop()
        yield {"request": request_id} | {
            way: [it for it in lines(worker) if it.get("task_id") == ids[way]] for way in SENT
        }


@pytest.mark.parametrize("way", SENT)
def test_django_structlog_keeps_the_request_over_retries_death_and_replay(seen, way):
    bodies = [it for it in seen[way] if it["event"].startswith("body of")]

    assert len(bodies) == 2
    assert [it["request_id"] for it in bodies] == [seen["request"], seen["request"]]


@pytest.mark.parametrize("way", ["policy", "changed"])
def test_django_structlog_binds_the_same_as_with_celerys_own_retry(seen, way):
    kept = ("request_id", "parent_task_id")
    (theirs, ours) = ([{name: it.get(name) == it["task_id"] or it.get(name) for name in kept}
                       for it in seen[which] if it["event"] in {"task_started", "task_retrying", "task_succeeded"}]
                      for which in ("plain", way))  # fmt: skip

    assert ours == theirs
    assert ours


@pytest.mark.parametrize("way", ["slow", "crashes"])
def test_a_copy_of_the_message_by_the_main_process_has_no_parent_task(seen, way):
    (ended,) = [it for it in seen[way] if it["event"] == "task_succeeded"]

    assert "parent_task_id" not in ended


def test_lines_of_the_main_process_are_among_the_lines_of_the_task(seen):
    assert [it["dlx_event"] for it in seen["slow"] if "dlx_event" in it] == ["HardTimeLimit", "RetryScheduled"]
    assert [it["dlx_event"] for it in seen["crashes"] if "dlx_event" in it] == ["RetryScheduled"]
    assert [it["dlx_event"] for it in seen["dies"] if "dlx_event" in it] == ["DeadLettered"]
