"""All operations know the same work queues: those of the app, of its routes, of its tasks, and of ``-Q``."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
from celery import Celery
from support import eventually

from celery_dlx_retry import DLXRetryTask
from celery_dlx_retry.broker.declare import declare
from celery_dlx_retry.errors import Missing
from celery_dlx_retry.operations.app_queues import known_work_queues
from celery_dlx_retry.operations.diagnose import diagnose
from celery_dlx_retry.operations.select_letters import LetterQuery, list_letters
from celery_dlx_retry.operations.session import open_session
from celery_dlx_retry.operations.status import read_status
from celery_dlx_retry.operations.topology import declare_topology, make_plan
from celery_dlx_retry.topology.names import WorkQueue
from celery_dlx_retry.topology.objects import work_queue_objects

TASKS = """
from celery_dlx_retry import DLXRetryTask
from shop_of_{module} import app

@app.task(name="late.charge", base=DLXRetryTask, shared=False)
def charge(): ...
"""


@pytest.fixture
def routed_app(prefix, broker, tmp_path, monkeypatch):
    """Its only task is in a module that ``include=`` names; a route names one more queue, a function another."""
    module = f"late_{prefix.replace('-', '_').replace('.', '_')}"
    (tmp_path / f"{module}.py").write_text(TASKS.format(module=module))
    monkeypatch.syspath_prepend(tmp_path)
    app = Celery("shop", broker=broker.url, include=[module], set_as_current=False)
    app.conf.update(
        task_default_queue=f"{prefix}.work",
        dlx_prefix=prefix,
        task_routes=[
            {"late.refund": {"queue": f"{prefix}.routed"}},
            lambda name, *_, **__: {"queue": f"{prefix}.own"} if name == "late.charge" else None,
        ],
    )
    monkeypatch.setitem(sys.modules, f"shop_of_{module}", SimpleNamespace(app=app))
    yield app
    app.close()
    sys.modules.pop(module, None)


def test_queues_of_routes_and_tasks_are_known_to_every_operation(routed_app, prefix, broker, management):
    wanted = {f"{prefix}.{name}" for name in ("work", "routed", "own")}
    url = broker.management_url if management else None

    with open_session(routed_app, management_url=url) as session:
        assert set(make_plan(routed_app).work_queues) == wanted
        declare_topology(session)
        assert {it.queue for it in read_status(session).queues if it.role == "work"} == wanted
        assert {it.name for it in session.queues} == wanted

    assert list_letters(routed_app, LetterQuery(queues=tuple(wanted))).total == 0
    assert "nothing-of-ours" not in {it.code for it in diagnose(routed_app, management_url=url).findings}


def test_the_same_queues_are_known_without_the_http_api(routed_app, prefix, monkeypatch):
    monkeypatch.setattr("celery_dlx_retry.broker.management._PORT", 1)

    with open_session(routed_app) as session:
        declare_topology(session)
        found = {it.queue for it in read_status(session).queues if it.role in {"work", "dead"}}

    assert found == {f"{prefix}.{name}{end}" for name in ("work", "routed", "own") for end in ("", ".dead")}


def test_asking_for_queues_does_not_make_a_worker_consume_them(routed_app, prefix):
    known_work_queues(routed_app)
    make_plan(routed_app)

    assert list(routed_app.amqp.queues) == [f"{prefix}.work"]


def test_a_queue_that_only_a_worker_names_is_in_status_and_in_the_doctor(app, prefix, broker, management):
    if management is None:
        pytest.skip("no HTTP API")
    other = f"{prefix}.only-by-q"
    with open_session(app, management_url=broker.management_url) as session:
        declare_topology(session)
        session.connection.default_channel.queue_declare(other, durable=True, auto_delete=False)
        declare(session.connection, work_queue_objects(session.names, WorkQueue(name=other)))

        eventually(lambda: other in {it.queue for it in read_status(session).queues if it.role == "work"})

    found = diagnose(app, management_url=broker.management_url).findings
    assert any(other in it.fact for it in found if it.code == "shared-prefix")


def test_a_task_of_ours_is_known_to_letters_before_anything_was_asked_of_the_app(routed_app):
    assert "late.charge" not in routed_app.tasks

    with pytest.raises(Missing):  # no worker has made a dead-letter queue yet
        list_letters(routed_app, LetterQuery())

    assert isinstance(routed_app.tasks["late.charge"], DLXRetryTask)
