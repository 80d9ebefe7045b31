"""A message waits in a lane as long as it should and comes back to its work queue."""

from __future__ import annotations

import itertools
import json
import time

import pytest
from support import eventually

from celery_dlx_retry.errors import Nacked
from celery_dlx_retry.topology.names import Names


@pytest.mark.usefixtures("kind")
def test_a_short_delay_overtakes_a_long_one(bench):
    works = [bench.work(work_kind, name=work_kind) for work_kind in ("classic", "quorum")]
    ways = [bench.lane(work, delay_ms) for delay_ms in (5_000, 1_000, 100) for work in works]

    with bench.publisher().producer() as producer:
        for there in ways:
            headers = {"delay": there.length_ms, "at": time.monotonic()}
            producer.publish("", exchange=there.exchange, routing_key=there.routing_key, headers=headers)
    arrivals = arrive([work.name for work in works], bench.connection, count=6)

    for work in works:
        came = [(headers["delay"], at - headers["at"]) for queue, headers, at in arrivals if queue == work.name]
        assert [delay_ms for delay_ms, _ in came] == [100, 1_000, 5_000]
        assert all(seconds >= delay_ms / 1000 for delay_ms, seconds in came)
        assert all(seconds < delay_ms / 1000 + 3 for delay_ms, seconds in came)


def test_a_lane_returns_messages_in_the_order_of_their_coming(bench, kind):
    works = [bench.work(kind, name=name) for name in ("one", "two")]
    ways = [bench.lane(work, 200) for work in works]

    with bench.publisher().producer() as producer:
        for number in range(20):
            there = ways[number % 2]
            producer.publish("", exchange=there.exchange, routing_key=there.routing_key, headers={"id": number})
    eventually(lambda: [bench.depth(work.name) for work in works] == [10, 10])

    assert bench.ids(works[0].name) == list(range(0, 20, 2))
    assert bench.ids(works[1].name) == list(range(1, 20, 2))


def test_when_the_work_queue_is_gone_its_retries_are_parked(bench, kind):
    gone, other = bench.work(kind, name="gone"), bench.work(kind, name="other")
    ways = [bench.lane(work, 700) for work in (gone, other)]

    with bench.publisher().producer() as producer:
        for number in range(20):
            there = ways[number // 10]
            producer.publish("", exchange=there.exchange, routing_key=there.routing_key, headers={"id": number})
    bench.connection.default_channel.queue_delete(gone.name)
    eventually(lambda: bench.depth(other.name) == 10)
    orphans = eventually(lambda: bench.depth(bench.names.orphans()) == 10 and bench.names.orphans())

    parked = bench.take(orphans)
    assert [int(message.headers["id"]) for message in parked] == list(range(10))
    assert {message.delivery_info["routing_key"] for message in parked} == {gone.name}
    assert bench.depth(bench.names.lane(gone, 700)) == 0
    assert bench.depth(gone.name) is None


def test_all_but_the_way_survives_the_wait(bench, kind):
    work = bench.work(kind)
    there = bench.lane(work, 100)

    with bench.publisher().producer() as producer:
        producer.publish(
            {"n": 1},
            exchange=there.exchange,
            routing_key=there.routing_key,
            headers={"nested": {"a": [1, {"b": 2}]}},
            priority=4,
            correlation_id="c",
            reply_to="r",
        )
    eventually(lambda: bench.depth(work.name))
    (message,) = bench.take(work.name)

    assert json.loads(message.body) == {"n": 1}
    assert message.headers["nested"] == {"a": [1, {"b": 2}]}
    assert {key: message.properties[key] for key in ("priority", "correlation_id", "reply_to", "delivery_mode")} == {
        "priority": 4,
        "correlation_id": "c",
        "reply_to": "r",
        "delivery_mode": 2,
    }


def test_a_full_lane_refuses_and_what_it_took_comes_back(bench, kind):
    work, names = bench.work(kind), Names(prefix=bench.prefix, kind=kind, max_waiting=5)
    there = bench.lane(work, 1_500, names=names)
    publisher = bench.publisher()

    def is_taken():
        try:
            with publisher.producer() as producer:
                producer.publish("", exchange=there.exchange, routing_key=there.routing_key)
        except Nacked:
            return False
        return True

    taken = sum(itertools.takewhile(bool, (is_taken() for _ in range(20))))

    assert taken == 5 if kind == "classic" else 5 <= taken <= 8  # a quorum queue counts late
    eventually(lambda: bench.depth(work.name) == taken)


def arrive(queues, connection, *, count):
    """Consume: the queue, the headers and the time of each message, in the order of their coming."""
    arrivals = []
    with connection.channel() as channel:
        for name in queues:
            channel.basic_consume(
                name,
                no_ack=True,
                callback=lambda message, name=name: arrivals.append((name, message.headers, time.monotonic())),
            )
        while len(arrivals) < count:
            connection.drain_events(timeout=20)
    return arrivals
