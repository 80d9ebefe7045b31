"""A session: it loads the app, connects, and has errors of ours."""

from __future__ import annotations

from pathlib import Path

import pytest

from celery_dlx_retry.errors import BadBrokerURL, NoManagement
from celery_dlx_retry.operations.operation_errors import BrokerUnavailable, NeedsRabbitMQ, UnknownQueue
from celery_dlx_retry.operations.prune import plan_prune
from celery_dlx_retry.operations.session import open_session
from celery_dlx_retry.operations.status import read_status
from celery_dlx_retry.operations.topology import check_topology, declare_topology, find_policies
from celery_dlx_retry.operations.waiting import cancel_waiting, count_waiting, list_waiting, run_waiting


def test_a_session_knows_the_work_queues_and_the_names(session, prefix):
    assert [queue.name for queue in session.work_queues] == [f"{prefix}.work"]
    assert session.names.prefix == prefix
    assert (session.operator, session.named, session.vhost) == ("anna@web", False, "/")


def test_a_session_for_named_queues_leaves_the_queues_of_the_app_as_they_are(app, prefix):
    with open_session(app, queues=[f"{prefix}.other"]) as session:
        assert [queue.name for queue in session.queues] == [f"{prefix}.other"]
        assert session.named

    assert list(app.amqp.queues) == [f"{prefix}.work"]


def test_a_broker_that_is_down_is_one_error_without_the_password(make_app):
    app = make_app("amqp://shop:geheim@127.0.0.1:1/shop")

    with pytest.raises(BrokerUnavailable, match=r"^The broker at 127.0.0.1:1, virtual host 'shop', cannot") as caught:
        open_session(app).__enter__()
    assert "geheim" not in str(caught.value)


def test_an_error_of_the_caller_inside_the_session_stays_what_it_is(app):
    with pytest.raises(FileNotFoundError), open_session(app):
        Path("/there/is/no/such/file").read_text()


@pytest.mark.parametrize(
    "operation",
    [
        read_status,
        list_waiting,
        lambda session: count_waiting(session, ["1"]),
        lambda session: run_waiting(session, ["1"]),
        lambda session: cancel_waiting(session, ["1"]),
        check_topology,
        declare_topology,
        find_policies,
        plan_prune,
    ],
)
def test_an_operation_that_loses_its_connection_says_so_in_one_error(session, operation):
    if operation is plan_prune and session.management is None:
        pytest.skip("no HTTP API")
    session.connection.default_channel.connection.transport.sock.close()

    with pytest.raises(BrokerUnavailable, match=r"^The broker at .* cannot be used"):
        operation(session)


@pytest.mark.parametrize(
    ("url", "error"), [("memory://", NeedsRabbitMQ), ("amqp://user:pass/word@host:5672//", BadBrokerURL)]
)
def test_a_broker_that_cannot_have_lanes_is_refused(make_app, url, error):
    with pytest.raises(error):
        open_session(make_app(url)).__enter__()


def test_a_queue_that_celery_may_not_create_is_unknown(make_app, broker):
    app = make_app(broker.url, task_create_missing_queues=False)

    with pytest.raises(UnknownQueue, match="There is no queue 'ordres' in task_queues"):
        open_session(app, queues=["ordres"]).__enter__()


def test_an_http_api_must_answer_only_if_it_was_named(app):
    with pytest.raises(NoManagement):
        open_session(app, management_url="http://127.0.0.1:1").__enter__()
