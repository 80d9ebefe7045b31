"""A task whose body has returned is done, also if its result cannot be stored: no dead letter, and no second run."""

from __future__ import annotations

import pytest
from celery import Celery
from support import eventually

from celery_dlx_retry.testing.sandbox import LOOPBACK, Sandbox
from tests.provision.redis import find_server, start


@pytest.fixture
def redis(say):
    """A Redis for this test alone; ``close()`` stops it."""
    sandbox = Sandbox("redis")
    try:
        port = start(find_server(say), sandbox, "not-a-secret")
        sandbox.url = f"redis://:not-a-secret@{LOOPBACK}:{port}/0"
        yield sandbox
    finally:
        sandbox.close()


@pytest.fixture
def sender(project):
    """An app that sends and has no result backend, whose absence it would notice."""
    conf = {name: project.conf[name] for name in ("broker_url", "task_default_queue")}
    with Celery("sender", config_source=conf, set_as_current=False) as app:
        yield app


def is_idle(app):
    """Whether no worker has a task that it has not acknowledged."""
    active = app.control.inspect(timeout=2).active()
    return bool(active) and not any(active.values())


def ids_in(log):
    return [line.partition(" id=")[2].partition(":")[0] for line in log.splitlines() if "result not stored" in line]


@pytest.mark.parametrize("pool", ["prefork", "solo", "threads"])
def test_what_has_run_while_the_result_backend_is_down_is_done(project, redis, sender, pool):
    project.conf["result_backend"] = redis.url
    project.conf["result_backend_transport_options"] = {"retry_policy": {"max_retries": 1, "interval_step": 0.1}}
    with project.worker(pool=pool, concurrency=4) as worker:
        redis.close()

        def send(name, *args, **options):
            return project.send(name, *args, app=sender, **options).id

        link = sender.signature("project.succeed", ("linked",), immutable=True)
        done = [send("succeed"), send("by_policy", 1), send("succeed", link=link)]
        failed, exhausted = send("fail"), send("by_policy")
        body = sender.signature("project.succeed", immutable=True).set(task_id="body")
        member = send("succeed", chord=body, group_id="group")

        eventually(lambda: len(project.dead()) == 3 and len(ids_in(worker.log)) == 4, within=60)
        eventually(lambda: is_idle(sender))

    reasons = {letter.record.task_id: letter.record.reason for letter in project.dead()}
    assert reasons == {failed: "failed", exhausted: "exhausted", member: "failed"}
    (linked,) = {run["id"] for run in project.records()} - {*done, *reasons}
    assert sorted(ids_in(worker.log)) == sorted([*done, linked])
    runs = [len(project.records(id=it)) for it in (*done, linked)]
    assert runs == [1, 2, 1, 1]
    assert project.depth(project.queue) == 0


def test_a_task_whose_start_cannot_be_stored_is_kept_and_has_not_run(project, redis, sender):
    """Celery stores STARTED before the body runs, and acknowledges the task if that fails."""
    project.conf["result_backend"] = redis.url
    project.conf["result_backend_transport_options"] = {"retry_policy": {"max_retries": 1, "interval_step": 0.1}}
    project.conf["task_track_started"] = True
    with project.worker():
        redis.close()
        sent = {project.send("succeed", app=sender).id for _ in range(3)}

        eventually(lambda: len(project.dead()) == len(sent), within=60)

    assert {letter.record.task_id: letter.record.reason for letter in project.dead()} == dict.fromkeys(sent, "failed")
    assert project.records() == []
    assert project.depth(project.queue) == 0


def test_what_has_run_is_done_also_if_its_backend_takes_a_failure_but_not_its_result(project, sender):
    with project.worker(module="project_unstored") as worker:
        ids = [project.send("succeed", app=sender).id for _ in range(5)]
        failed = project.send("fail", app=sender).id

        eventually(lambda: len(ids_in(worker.log)) == 5 and project.dead())
        eventually(lambda: is_idle(sender))

    assert sorted(ids_in(worker.log)) == sorted(ids)
    assert [letter.record.task_id for letter in project.dead()] == [failed]
    assert len(project.records(event="run")) == 6
    assert project.depth(project.queue) == 0


def test_a_task_that_rejects_itself_goes_back_whatever_its_functions_are_named(project, sender):
    with project.worker(module="project_unstored"):
        rejected = sender.send_task("project_unstored.put_back_once").id

        eventually(lambda: len(project.records(id=rejected)) == 2)
