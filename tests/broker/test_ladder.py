"""A message steps down the ladder inside the broker, is never early, and comes back to its work queue."""

from __future__ import annotations

import time
from itertools import pairwise

from support import eventually

from celery_dlx_retry.broker.dead_letters import browse
from celery_dlx_retry.settings import Settings
from celery_dlx_retry.topology.ladder import Ladder
from celery_dlx_retry.topology.names import WorkQueue
from celery_dlx_retry.topology.wait_route import LadderRoute, route
from tests.broker.test_lanes import arrive

LADDER = Ladder(resolution_ms=20, rungs=7)
DELAYS_MS = (1, 20, 21, 100, 310, 640, 1_260, 2_540)  # one rung, several, all of them


def send(bench, queue, delay_ms, ladder=LADDER, **headers):
    """Publish it onto the ladder; its headers say when."""
    steps = ladder.steps(delay_ms)
    there = route(LadderRoute(steps, ladder.length_ms(steps)), bench.names, queue, ladder=ladder)
    with bench.publisher().producer(headers=there.headers) as producer:
        facts = {"delay": delay_ms, "at": time.monotonic(), **headers}
        producer.publish("", exchange=there.exchange, routing_key=queue.name, headers=facts)


def test_no_message_is_early_or_much_too_late_whatever_rungs_it_takes(bench, kind):
    work = bench.work(kind, name=f"{kind}.with.dots#*")
    bench.ladder(LADDER, work)
    for delay_ms in DELAYS_MS:
        send(bench, work, delay_ms)

    arrivals = arrive([work.name], bench.connection, count=len(DELAYS_MS))

    came = {headers["delay"]: at - headers["at"] for _, headers, at in arrivals}
    assert came.keys() == set(DELAYS_MS)
    assert [delay_ms for delay_ms, seconds in came.items() if seconds < delay_ms / 1000] == []
    assert [delay_ms for delay_ms, seconds in came.items() if seconds > delay_ms / 1000 + 3] == []


def test_every_rung_of_its_delay_is_passed_once_and_no_other(bench, kind):
    work = bench.work(kind)
    bench.ladder(LADDER, work)

    send(bench, work, 20 * 0b1101101)

    eventually(lambda: bench.depth(work.name))
    (message,) = bench.take(work.name)
    passed = {death["queue"] for death in message.headers["x-death"]}
    assert passed == {*(bench.names.rung(20, number) for number in (0, 2, 3, 5, 6)), bench.names.landing(work)}
    assert {death["count"] for death in message.headers["x-death"]} == {1}
    assert message.delivery_info["routing_key"] == work.name


def test_a_message_goes_down_the_ladder_again_and_again(bench, kind):
    """RabbitMQ 3 drops what seems to go in a circle: so nothing of the first way may go along."""
    work = bench.work(kind)
    bench.ladder(LADDER, work)

    headers = {}
    for _ in range(3):
        send(bench, work, 60, **headers)
        eventually(lambda: bench.depth(work.name))
        (message,) = bench.take(work.name)
        headers = message.headers
        assert len(headers["x-death"]) == 3  # two rungs and the landing queue


def test_the_ladder_of_the_default_settings_stands_and_can_be_declared_again(bench, kind):
    ladder = Ladder.of(Settings())
    work = bench.work(kind)

    bench.ladder(ladder, work)
    bench.ladder(ladder, work)

    send(bench, work, 150, ladder=ladder)
    send(bench, work, ladder.longest_ms, ladder=ladder)
    eventually(lambda: bench.depth(work.name) == 1)
    eventually(lambda: bench.depth(bench.names.rung(100, ladder.rungs - 1)) == 1)


def test_a_longer_ladder_stands_on_a_shorter_one(bench, kind):
    work = bench.work(kind)
    shorter, longer = Ladder(resolution_ms=20, rungs=2), Ladder(resolution_ms=20, rungs=4)
    bench.ladder(shorter, work)

    bench.ladder(longer, work)

    send(bench, work, 20 * 0b1111, ladder=longer)
    eventually(lambda: bench.depth(work.name) == 1)


def test_when_the_work_queue_is_gone_its_messages_are_parked_under_its_name(bench, kind):
    gone, other = WorkQueue(name=f"{bench.prefix}.gone"), bench.work(kind, name="other")
    bench.ladder(LADDER, other)

    for _ in range(5):
        send(bench, gone, 60)
        send(bench, other, 60)
    eventually(lambda: bench.depth(other.name) == 5)
    eventually(lambda: bench.depth(bench.names.orphans()) == 5)

    records = [letter.record for letter in browse(bench.connection, bench.names.orphans())]
    assert {(record.reason, record.queue) for record in records} == {("unroutable", gone.name)}
    parked = bench.take(bench.names.orphans())
    assert {message.delivery_info["routing_key"] for message in parked} == {gone.name}


def test_messages_of_one_delay_come_back_in_the_order_of_their_coming(bench, kind):
    work = bench.work(kind)
    bench.ladder(LADDER, work)

    for number in range(20):
        send(bench, work, 140, number=number)
    eventually(lambda: bench.depth(work.name) == 20)

    numbers = [message.headers["number"] for message in bench.take(work.name)]
    assert all(before < after for before, after in pairwise(numbers))
