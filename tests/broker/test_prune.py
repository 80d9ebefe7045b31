"""Lanes are found, and those that nobody needs can go; never with a message in them."""

from __future__ import annotations

import signal
import threading
from contextlib import suppress

import pytest
from amqp.exceptions import InternalError
from support import eventually, put

from celery_dlx_retry.broker import lanes as lanes_module
from celery_dlx_retry.broker.lanes import prune, standing_lanes
from celery_dlx_retry.broker.look import looking
from celery_dlx_retry.broker.management import management_of
from celery_dlx_retry.core.topology import Lane, around, foundation, lane
from celery_dlx_retry.errors import Forbidden, PublishError, TopologyError


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    """Less time for what is on its way makes each race more likely, not less."""
    monkeypatch.setattr(lanes_module, "SETTLE_SECONDS", 0.15)


def a_lane(bench, kind, delay_ms=60_000):
    bench.stand(lane(bench.names, delay_ms))
    return Lane(name=bench.names.lane(delay_ms), kind=kind, delay_ms=delay_ms)


def pruned(bench, *lanes):
    return {each.name: reason for each, reason in prune(bench.connect(), lanes)}


def test_standing_lanes_are_found_with_and_without_the_http_api(bench, broker, kind):
    bench.work(kind)
    expected = [a_lane(bench, kind, 1000), a_lane(bench, kind, 60_000)]
    api = management_of(bench.connection, broker.management_url)
    search = {"possible": [bench.names.lane(delay_ms) for delay_ms in (500, 1000, 60_000)]}

    over_amqp = standing_lanes(bench.connection, bench.names, **search, management=None)
    over_http = eventually(lambda: standing_lanes(bench.connection, bench.names, **search, management=api))

    assert over_amqp == over_http == expected


def test_an_empty_lane_goes_with_its_exchange(bench, kind):
    empty = a_lane(bench, kind)

    assert pruned(bench, empty) == {empty.name: ""}

    assert bench.depth(empty.name) is None
    assert not bench.has_exchange(empty.name)


def test_a_lane_with_a_message_stays_as_it_was(bench, kind):
    full, empty = a_lane(bench, kind), a_lane(bench, kind, 70_000)
    bench.put(full.name, [1])

    assert pruned(bench, full, empty) == {full.name: "something waits in it", empty.name: ""}

    assert bench.has_exchange(full.name)
    assert bench.ids(full.name) == [1]


def test_a_lane_that_is_looked_into_is_not_pruned(bench, kind):
    """Its messages are in nobody's count, and the broker would delete them with a queue that it calls empty."""
    looked_into = a_lane(bench, kind)
    bench.put(looked_into.name, [1, 2])
    with looking(bench.connection, looked_into.name, kind=kind) as messages:
        assert len(list(messages)) == 2

        assert pruned(bench, looked_into) == {looked_into.name: "somebody looks into it"}

    eventually(lambda: bench.depth(looked_into.name) == 2)
    assert bench.has_exchange(looked_into.name)


def test_what_somebody_held_with_no_consumer_and_gives_back_keeps_the_lane(bench, kind):
    peeked = a_lane(bench, kind)
    bench.put(peeked.name, [1])
    other = bench.connect().channel()
    other.basic_get(peeked.name)
    outcome = prune(bench.connect(), [peeked])
    # A quorum queue calls one a consumer who has got a message: there it is held until the end.
    timer = threading.Timer(0.05, other.close)
    if kind == "classic":
        timer.start()

    ((_, reason),) = outcome

    timer.join() if kind == "classic" else other.close()
    assert reason == ("something waits in it" if kind == "classic" else "somebody looks into it")
    assert bench.has_exchange(peeked.name)
    eventually(lambda: bench.depth(peeked.name) == 1)


def test_a_lane_that_is_made_again_meanwhile_stays(bench, kind, monkeypatch):
    monkeypatch.setattr(lanes_module, "SETTLE_SECONDS", 2.0)
    wanted = a_lane(bench, kind)
    outcome = prune(bench.connect(), [wanted])

    def publish():
        eventually(lambda: not bench.has_exchange(wanted.name))
        bench.stand(lane(bench.names, 60_000))

    publisher = threading.Thread(target=publish)
    publisher.start()

    assert [reason for _, reason in outcome] == ["in use again"]
    publisher.join()
    assert bench.depth(wanted.name) == 0


def test_ctrl_c_leaves_every_lane_with_its_exchange(bench, kind, monkeypatch):
    monkeypatch.setattr(lanes_module, "SETTLE_SECONDS", 20.0)
    lanes = [a_lane(bench, kind, delay_ms) for delay_ms in (60_000, 70_000)]

    def interrupt():
        eventually(lambda: not any(bench.has_exchange(it.name) for it in lanes))
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    operator = threading.Thread(target=interrupt)
    operator.start()
    with pytest.raises(KeyboardInterrupt):
        list(prune(bench.connect(), lanes))
    operator.join()

    assert all(bench.has_exchange(it.name) for it in lanes)
    for it in lanes:
        put(bench.url, [1], exchange=it.name, routing_key="any")
        eventually(lambda name=it.name: bench.depth(name) == 1)


def test_who_may_not_configure_prunes_nothing(bench, limited_url):
    empty = a_lane(bench, "classic")

    with pytest.raises(Forbidden):
        list(prune(bench.connect(url=limited_url), [empty]))

    assert bench.depth(empty.name) == 0
    assert bench.has_exchange(empty.name)


def test_publishing_while_lanes_are_pruned_loses_nothing(bench, kind):
    work = bench.work(kind)
    short = a_lane(bench, kind, 100)
    needs = foundation(bench.names) | around(bench.names, work) | lane(bench.names, 100)
    publisher = bench.publisher()
    ended = threading.Event()
    outcomes = []

    def keep_pruning():
        while not ended.is_set():
            # RabbitMQ 4.3 answers 541 at times to one who deletes an exchange while another declares it.
            with suppress(InternalError):
                outcomes.extend(reason for _, reason in prune(bench.connect(), [short]))

    pruner = threading.Thread(target=keep_pruning)
    pruner.start()
    confirmed = []
    try:
        while outcomes.count("") < 3 and pruner.is_alive():
            # As a worker does: what is not confirmed stays where it is, and is tried again.
            with suppress(PublishError, TopologyError), publisher.producer(needs=needs) as producer:
                number = len(confirmed)
                producer.publish(b"", exchange=short.name, routing_key=work.name, headers={"id": number})
                confirmed.append(number)
            ended.wait(0.01 * (len(confirmed) % 40))  # at times long enough that the lane is empty
    finally:
        ended.set()
        pruner.join()

    assert outcomes.count("") >= 3
    eventually(lambda: bench.depth(work.name) >= len(confirmed))
    assert set(bench.ids(work.name)) == set(confirmed)
