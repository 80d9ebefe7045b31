"""What a broker says of itself, and what we say to that."""

from __future__ import annotations

import pytest

from celery_dlx_retry.topology.broker_requirements import Server, problems

# As they are sent in connection.start: RabbitMQ's recorded, LavinMQ's from its source.
CAPABILITIES = {
    "publisher_confirms": True,
    "exchange_exchange_bindings": True,
    "basic.nack": True,
    "consumer_cancel_notify": True,
    "connection.blocked": True,
    "consumer_priorities": True,
    "authentication_failure_close": True,
    "per_consumer_qos": True,
    "direct_reply_to": True,
}
RABBITMQ = {
    "capabilities": CAPABILITIES,
    "cluster_name": "rabbit@db1",
    "copyright": "Copyright (c) 2007-2022 VMware, Inc. or its affiliates.",
    "information": "Licensed under the MPL 2.0. Website: https://rabbitmq.com",
    "platform": "Erlang/OTP 25.2.3",
    "product": "RabbitMQ",
    "version": "3.10.8",
}
LAVINMQ = {"product": "LavinMQ", "platform": "Crystal 1.16.3", "version": "2.9.0", "capabilities": CAPABILITIES}


def told(properties, lanes="quorum", delayed_retry=()):
    return [str(it) for it in problems(Server.of(properties), lanes=lanes, delayed_retry=delayed_retry)]


def version(text):
    return {**RABBITMQ, "version": text}


@pytest.mark.parametrize("text", ["3.10.0", "3.13.7", "4.0.5", "4.3.6", "4.4.0-rc.1", "4.3.0+dfsg", "from source"])
def test_rabbitmq_from_3_10_on_is_enough(text):
    assert told(version(text)) == []


@pytest.mark.parametrize("text", ["3.9.29", "3.8", "2.8.7"])
@pytest.mark.parametrize("lanes", ["classic", "quorum"])
def test_an_older_rabbitmq_is_refused(text, lanes):
    (sentence,) = told(version(text), lanes=lanes)

    assert sentence == (
        f"The broker is RabbitMQ {text}: it has no at-least-once dead-lettering, which came with 3.10; waiting tasks "
        "could be lost. Upgrade it."
    )


def test_another_broker_is_refused_where_quorum_queues_are_needed():
    (sentence,) = told(LAVINMQ)

    assert sentence == (
        "The broker is LavinMQ 2.9.0: lanes and dead-letter queues must be quorum queues, which only RabbitMQ is "
        'known to have. Use RabbitMQ; or set dlx_queue_type = "classic", and test it well: we have never tried it.'
    )
    assert told(LAVINMQ, lanes="classic") == []


@pytest.mark.parametrize(
    ("missing", "problem"),
    [("publisher_confirms", "it does not confirm what is published"), ("basic.nack", "it cannot refuse what")],
)
def test_a_broker_without_confirms_is_refused_whatever_it_is_called(missing, problem):
    without = {**CAPABILITIES, missing: False}

    for properties in (RABBITMQ, LAVINMQ):
        (sentence,) = told({**properties, "capabilities": without}, lanes="classic")
        assert f": {problem}" in sentence


def test_a_broker_that_says_nothing_is_refused():
    sentences = told({})

    assert len(sentences) == 3
    assert sentences[0].startswith("The broker is unknown: it does not confirm")


@pytest.mark.parametrize("properties", [RABBITMQ, version("4.2.9"), version("from source"), LAVINMQ])
def test_a_delayed_retry_is_refused_before_rabbitmq_4_3(properties):
    (sentence,) = told(properties, lanes="classic", delayed_retry=["orders"])

    assert "it ignores the delayed_retry of the queue 'orders', which came with RabbitMQ 4.3." in sentence
    assert told(version("4.3.0"), delayed_retry=["orders"]) == []


@pytest.mark.parametrize(
    "properties",
    [
        {"capabilities": 5},
        {"capabilities": ["publisher_confirms"]},
        {"product": "\x1b[31m" + "x" * 5_000, "version": {"a": 1}},
        {"product": None, "version": "9" * 5_000},
    ],
)
def test_what_a_hostile_broker_says_of_itself_is_short_and_printable(properties):
    server = Server.of(properties)

    assert len(str(server)) < 200
    assert str(server).isprintable()
    assert isinstance(server.numbers, tuple)
    assert told(properties) != []
