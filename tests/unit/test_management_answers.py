"""Answers of the HTTP API: right ones become values, wrong ones are refused in our own words."""

from __future__ import annotations

import pytest

from celery_dlx_retry.topology import management_answers as answers
from celery_dlx_retry.topology.specs import BindingSpec

BINDING = {"source": "dlx.v1.dead", "destination": "orders.dead", "destination_type": "queue", "routing_key": "orders"}
POLICY = {"name": "ha", "pattern": ".*", "apply-to": "queues", "priority": 0, "definition": {"max-length": 5}}


def test_a_queue_has_the_columns_that_the_broker_knows():
    row = {
        "name": "orders",
        "type": "quorum",
        "durable": True,
        "arguments": {"x-queue-type": "quorum", "x-message-ttl": 5},
        "consumers": 2,
        "messages": 7,
        "messages_unacknowledged": "unknown",
        "head_message_timestamp": 1_800_000_000,
        "message_stats": {"publish_details": {"rate": 0.5}, "deliver_get_details": {"rate": "undefined"}},
    }

    (found,) = answers.queues([row]).items()

    assert found == (
        "orders",
        {
            "arguments": row["arguments"],
            "type": "quorum",
            "durable": True,
            "consumers": 2,
            "messages": 7,
            "head_message_timestamp": 1_800_000_000,
            "message_stats": {"publish_details": {"rate": 0.5}},
        },
    )


@pytest.mark.parametrize("at", [-1, 253_402_300_800, "yesterday", True, 1.5])
def test_a_senders_impossible_time_is_left_out_and_refuses_nothing(at):
    found = answers.queues([{"name": "orders", "head_message_timestamp": at}])

    assert found == {"orders": {"arguments": {}, "message_stats": {}}}


def test_an_object_without_members_may_be_an_empty_list():
    """So RabbitMQ writes it."""
    found = answers.queues([{"name": "orders", "arguments": [], "message_stats": []}])

    assert found == {"orders": {"arguments": {}, "message_stats": {}}}


def test_bindings_to_queues_are_values_and_others_are_left_out():
    to_exchange = {**BINDING, "destination_type": "exchange"}
    with_arguments = {**BINDING, "arguments": {"x-match": "all", "deep": [1]}}

    found = answers.bindings([BINDING, to_exchange, with_arguments])

    plain = {"exchange": "dlx.v1.dead", "queue": "orders.dead", "routing_key": "orders"}
    assert found == {
        BindingSpec(**plain, arguments=()),
        BindingSpec(**plain, arguments=(("deep", "[1]"), ("x-match", "all"))),
    }


def test_policies_keep_what_decides_which_one_applies():
    assert answers.policies([{**POLICY, "vhost": "/"}]) == (POLICY,)


def test_the_version_is_text():
    assert answers.version({"rabbitmq_version": "4.3.1"}) == "4.3.1"
    with pytest.raises(ValueError, match="has no version"):
        answers.version({"rabbitmq_version": 4})


@pytest.mark.parametrize("body", [b"<html>", b"NaN", b"[Infinity]", b"\xff", b"[" * 200_000])
def test_what_is_not_json_is_refused(body):
    with pytest.raises(ValueError, match=r"^is not JSON$"):
        answers.parsed(body)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ({}, "is not a list"),
        ([[1]], "has something else where an object must be"),
        ([{"name": 5}], "has a wrong value in 'name'"),
        ([{"name": "ä" * 128}], "has a wrong value in 'name'"),
        ([{"name": "\ud800"}], "has a wrong value in 'name'"),
        ([{"name": "q", "durable": 1}], "has a wrong value in 'durable'"),
        ([{"name": "q", "messages": -1}], "has a wrong value in 'messages'"),
        ([{"name": "q", "messages": True}], "has a wrong value in 'messages'"),
        ([{"name": "q", "messages": 2**53}], "has a wrong value in 'messages'"),
        ([{"name": "q", "message_stats": {"publish_details": {"rate": -1}}}], "has a wrong value in 'rate'"),
        ([{"name": "q", "message_stats": {"publish_details": {"rate": "1"}}}], "has a wrong value in 'rate'"),
        ([{"name": "q", "arguments": {"x-overflow": 5}}], "has an argument of a wrong kind"),
        ([{"name": "q", "arguments": {"x-any": "\ud800"}}], "has an argument of a wrong kind"),
    ],
)
def test_a_queue_of_a_wrong_shape_is_refused(answer, words):
    with pytest.raises(ValueError, match=f"^{words}$"):
        answers.queues(answer)


@pytest.mark.parametrize("wrong", [{"priority": "0"}, {"pattern": None}, {"definition": 5}, {"name": ["ha"]}])
def test_a_policy_of_a_wrong_shape_is_refused(wrong):
    with pytest.raises(ValueError, match=r"^has "):
        answers.policies([{**POLICY, **wrong}])


def test_the_number_of_published_messages_is_a_count():
    assert answers.queues([{"name": "q", "message_stats": {"publish": 7}}])["q"]["published"] == 7
    with pytest.raises(ValueError, match="has a wrong value in 'publish'"):
        answers.queues([{"name": "q", "message_stats": {"publish": -1}}])
