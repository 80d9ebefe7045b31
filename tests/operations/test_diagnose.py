"""A diagnosis as a value, of a broker that answers, that is down, or that is another product."""

from __future__ import annotations

import threading

import pytest
from support import eventually

from celery_dlx_retry.errors import InvalidSetting
from celery_dlx_retry.operations.app_facts import facts_of_tasks
from celery_dlx_retry.operations.diagnose import STEPS, diagnose
from celery_dlx_retry.operations.monitor import Monitor
from celery_dlx_retry.operations.operation_errors import Stopped
from celery_dlx_retry.operations.topology import declare_topology


def codes(diagnosis):
    return {it.code for it in diagnosis.grave}


def test_a_broken_app_has_findings_and_the_steps_are_reported(make_app, broker):
    app = make_app(broker.url, worker_prefetch_multiplier=0, task_default_delivery_mode="transient")
    steps = []

    found = diagnose(app, monitor=Monitor(progress=lambda *step: steps.append(step)))

    assert {"unlimited-prefetch", "transient-messages"} <= codes(found)
    assert all(it.fact and it.consequence and it.cure for it in found.findings)
    assert steps == [(done, STEPS) for done in range(1, STEPS + 1)]


def test_a_broker_that_is_down_is_a_finding_beside_those_of_the_app(make_app):
    found = diagnose(make_app("amqp://127.0.0.1:1//", worker_prefetch_multiplier=0))

    assert "unlimited-prefetch" in codes(found)
    assert any("127.0.0.1:1" in it.fact for it in found.grave)


def test_another_broker_is_a_finding(make_app):
    assert diagnose(make_app("memory://")).grave


def test_a_diagnosis_that_is_cancelled_has_no_result(app):
    cancel = threading.Event()

    with pytest.raises(Stopped, match="The diagnosis was stopped before it had a result"):
        diagnose(app, monitor=Monitor(progress=lambda *_: cancel.set(), cancel=cancel))


@pytest.fixture
def url(broker, management):
    """The HTTP API, if there is one."""
    return broker.management_url if management else None


def test_a_work_queue_that_was_deleted_its_orphans_and_its_waiting_tasks_are_errors(app, session, charge, prefix, url):
    declare_topology(session)
    assert not {"work-queue-missing", "orphans"} & codes(diagnose(app, management_url=url))
    charge(600)
    charge(2)

    session.connection.default_channel.queue_delete(f"{prefix}.work")

    found = eventually(lambda: (it := diagnose(app, management_url=url)) and "orphans" in codes(it) and it)
    assert "work-queue-missing" in codes(found)
    assert {it.severity for it in found.grave if it.code in {"work-queue-missing", "orphans"}} == {"error"}


def test_a_queue_with_tasks_and_no_worker_is_an_error_and_an_empty_one_is_not(app, session, url):
    declare_topology(session)
    assert "no-worker" not in codes(diagnose(app, management_url=url))

    app.tasks["shop.charge"].delay(1)

    eventually(lambda: "no-worker" in codes(diagnose(app, management_url=url)))


def test_accepted_findings_are_shown_and_do_not_count(make_app, broker):
    plain = diagnose(make_app(broker.url))
    assert "unconfirmed-publish" in codes(plain)

    found = diagnose(make_app(broker.url, dlx_doctor_accept=["unconfirmed-publish", "no-consumer:nowhere"]))

    assert "unconfirmed-publish" not in codes(found)
    assert [it.accepted for it in found.findings if it.code == "unconfirmed-publish"] == [True]
    assert not any(it.accepted for it in found.findings if it.code == "no-consumer")


def test_a_code_that_no_rule_has_cannot_be_accepted(make_app, broker):
    with pytest.raises(InvalidSetting, match="perhaps 'unconfirmed-publish'"):
        diagnose(make_app(broker.url, dlx_doctor_accept=["unconfirmed-publishs"]))


SHOP = """
@app.task(name="shop.batch", Strategy="celery_batches:Strategy", shared=False)
def batch(requests): ...

@app.task(name="shop.mail", shared=False)
def mail(order): ...

@app.task(name="shop.all", shared=False)
def mail_all(orders):
    mail.map(orders).delay()
    return list(map(str, orders)), orders.items()
"""


def test_maps_of_tasks_and_foreign_strategies_are_found(make_app):
    app = make_app("memory://")
    exec(SHOP, {"app": app})  # noqa: S102 - our own text

    facts = facts_of_tasks(app)

    assert {it.name: it.strategy for it in facts if it.strategy} == {"shop.batch": "celery_batches:Strategy"}
    assert {it.name: it.mapped for it in facts if it.mapped} == {"shop.all": ("shop.mail",)}
