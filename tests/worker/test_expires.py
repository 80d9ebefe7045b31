"""A task whose ``expires`` passes behind a backlog."""

from __future__ import annotations

import pytest
from celery import Celery
from support import eventually

from celery_dlx_retry import DLXRetryTask
from tests.worker.stage import stage

BACKLOG_SECONDS = 2.0


@pytest.fixture(scope="module")
def project(request):
    """A worker that holds one message at a time."""
    with stage(request, worker_prefetch_multiplier=1) as it:
        it.start(module="project_expiring", concurrency=1).wait_until_ready()
        yield it


def block(project):
    """Keep the worker busy; return when it is."""
    result = project.app.send_task("expiring.ours", (BACKLOG_SECONDS,))
    eventually(lambda: project.records(id=result.id))
    return result


def test_what_expires_behind_a_backlog_is_revoked(project):
    blocking, expiring = project.app.send_task("expiring.send_all_kinds", (BACKLOG_SECONDS,)).get(timeout=20)

    project.app.AsyncResult(blocking).get(timeout=20)
    for task_id in expiring:
        eventually(lambda task_id=task_id: project.app.AsyncResult(task_id).state == "REVOKED")
        assert not project.records(id=task_id)


def test_what_does_not_expire_in_time_runs(project):
    task_id = project.app.send_task("expiring.send", (0, 60)).get(timeout=20)

    project.app.AsyncResult(task_id).get(timeout=20)
    assert len(project.records(id=task_id)) == 1


def test_what_another_app_sends_by_name_is_dropped_by_the_broker_as_with_celerys_late_acknowledgement(project):
    busy = block(project)

    results = [project.app.send_task(f"expiring.{kind}", expires=0.5) for kind in ("late", "ours")]

    busy.get(timeout=20)
    project.app.send_task("expiring.ours").get(timeout=20)
    assert [result.state for result in results] == ["PENDING", "PENDING"]
    assert not [row for result in results for row in project.records(id=result.id)]


def test_a_countdown_that_came_back_and_expires_behind_a_backlog_is_revoked(project):
    task_id = project.app.send_task("expiring.send", (0.3, 0.8)).get(timeout=20)
    busy = block(project)

    busy.get(timeout=20)
    result = project.app.AsyncResult(task_id)
    eventually(lambda: result.state == "REVOKED")
    assert not project.records(id=task_id)


def test_a_retry_that_came_back_and_expires_behind_a_backlog_is_revoked(project):
    result = project.app.send_task("expiring.ours", kwargs={"retry_in": 0.3}, expires=1.0)
    eventually(lambda: result.state == "RETRY")
    busy = block(project)

    busy.get(timeout=20)
    eventually(lambda: result.state == "REVOKED")
    assert len(project.records(id=result.id)) == 1


@pytest.mark.parametrize("protocol", [1, 2])
def test_the_message_says_when_it_expires_in_both_protocols(protocol):
    """The first protocol has ``expires`` in its body, and no worker reads such a header there."""
    sent = []
    with Celery("sender", broker="amqp://", set_as_current=False) as app:
        app.conf.task_protocol = protocol
        app.amqp.send_task_message = lambda _producer, _name, message, **options: sent.append((message, options))

        @app.task(base=DLXRetryTask, shared=False)  # else every later app in this process has it, too
        def expiring():
            pass

        expiring.apply_async(expires=60, producer=app.amqp.Producer(app.connection_for_write(), auto_declare=False))

    ((message, options),) = sent
    assert (message.body if protocol == 1 else options["headers"])["expires"]
