"""Plan, check, declare, policies and prune, as values."""

from __future__ import annotations

import threading

import pytest
from support import eventually

from celery_dlx_retry.errors import DelayTooLong
from celery_dlx_retry.operations.monitor import Monitor
from celery_dlx_retry.operations.operation_errors import BrokerUnavailable, CannotPrune
from celery_dlx_retry.operations.prune import plan_prune, prune
from celery_dlx_retry.operations.session import open_session
from celery_dlx_retry.operations.topology import check_topology, declare_topology, find_policies, make_plan
from celery_dlx_retry.topology.names import WorkQueue


@pytest.fixture
def http_api(management):
    if management is None:
        pytest.skip("no HTTP API")


def test_a_plan_needs_no_broker(make_app, prefix):
    plan = make_plan(make_app("amqp://127.0.0.1:1/shop"))

    assert (plan.vhost, plan.work_queues) == ("shop", (f"{prefix}.work",))
    assert plan.wait_queues > 2
    assert all(it.name.startswith(prefix) for it in plan.topology.queues)


def test_a_delay_that_a_worker_refuses_has_no_plan(make_app, broker):
    with pytest.raises(DelayTooLong, match=r"^The task 'shop.charge' asks to wait 10 min"):
        make_plan(make_app(broker.url, dlx_max_delay=120))


def test_check_finds_everything_missing_before_declare_and_nothing_after(session, prefix, audited):
    before = check_topology(session)
    declared = declare_topology(session)
    after = check_topology(session)

    assert {it.kind for it in before.differences} == {"missing"}
    assert (after.drifts, after.unchecked) == ((), ())
    assert len(before.differences) == declared.exchanges + declared.queues + 1  # and the work queue
    assert audited[-1].startswith(f"audit declare by=anna@web prefix={prefix} exchanges={declared.exchanges} ")


def test_check_finds_drift(session):
    declare_topology(session)
    lane = session.names.lane(WorkQueue(name=session.queues[0].name), 60_000)
    letters = session.names.dead_letters(session.queues[0].name)
    channel = session.connection.default_channel
    channel.queue_delete(lane)
    channel.queue_delete(letters)
    channel.queue_declare(letters, durable=True, auto_delete=False, arguments={"x-max-length": 7})

    found = {it.name: it for it in check_topology(session).differences}

    assert found[lane].kind == "missing"
    assert found[letters].kind == "mismatch"
    assert "x-max-length" in found[letters].fact


def test_a_declare_that_fails_is_in_the_audit_log(session, audited, monkeypatch):
    def fail(*_):
        raise ConnectionResetError

    monkeypatch.setattr("celery_dlx_retry.operations.topology.declare_if_missing", fail)
    with pytest.raises(BrokerUnavailable, match="cannot be used: ConnectionResetError"):
        declare_topology(session)

    assert audited[-1].endswith(" outcome=interrupted")


def test_a_queue_without_a_dead_letter_exchange_gets_a_policy(session, prefix):
    declare_topology(session)

    found = find_policies(session)

    (it,) = found.queues
    assert (it.queue, it.dead_letter_exchange) == (f"{prefix}.work", "")
    assert it.policy.definition["dead-letter-exchange"] == session.names.dead()
    assert "rabbitmqctl set_policy" in it.policy.rabbitmqctl()


@pytest.mark.usefixtures("http_api")
def test_a_prune_that_is_cancelled_deletes_no_lane_and_binds_all_again(session, charge, audited, broker):
    declare_topology(session)
    plan = eventually(lambda: (it := plan_prune(session, everything=True)).empty and it)
    cancel = threading.Event()
    threading.Timer(0.5, cancel.set).start()

    result = prune(session, plan, monitor=Monitor(cancel=cancel))

    assert result.is_cancelled
    assert result.deleted == ()
    assert {it.reason for it in result.lanes} == {"the prune was cancelled"}
    assert audited[-1].endswith(f"deleted=0 kept={len(plan.empty) + plan.kept}")
    with open_session(session.app, management_url=broker.management_url) as fresh:
        assert check_topology(fresh).differences == ()
    assert charge()


def test_a_prune_needs_an_app_that_may_declare(make_app, broker):
    with (
        open_session(make_app(broker.url, dlx_declare=False)) as session,
        pytest.raises(CannotPrune, match="Nothing was deleted: dlx_declare is False"),
    ):
        plan_prune(session)


def test_a_prune_needs_the_http_api(app, monkeypatch):
    monkeypatch.setattr("celery_dlx_retry.broker.management._PORT", 1)
    with open_session(app) as session, pytest.raises(CannotPrune, match="prune needs the HTTP API"):
        plan_prune(session)
