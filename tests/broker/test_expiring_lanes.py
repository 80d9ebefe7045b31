"""A lane that expires takes nothing with it, as long as its leases are kept; and what waits outlasts a restart."""

from __future__ import annotations

import multiprocessing
import random
import time
from contextlib import closing
from functools import partial

import pytest
from kombu.connection import Connection
from support import eventually

from celery_dlx_retry.broker import declare as declare_module
from celery_dlx_retry.broker.lanes import LaneRenewal, make_lanes
from celery_dlx_retry.broker.sync_publisher import Publisher
from celery_dlx_retry.errors import PublishError, TopologyError
from celery_dlx_retry.topology.ladder import Ladder
from celery_dlx_retry.topology.names import Names, WorkQueue
from celery_dlx_retry.topology.objects import lane
from celery_dlx_retry.topology.wait_route import LaneRoute, route
from tests.broker.test_ladder import send

TTL_MS, EXPIRES_MS, LEASE_MS = 500, 2_000, 500
LADDER = Ladder(resolution_ms=100, rungs=8)


def test_the_naive_recipe_loses_what_is_in_the_lane(bench, management):
    """An expiry of twice the TTL, and the belief that a publish is a use of the queue."""
    work = bench.work()
    declared = time.monotonic()
    naive = bench.lane(work, 1_000, expires_ms=1_000)
    eventually(lambda: time.monotonic() > declared + 1.3)

    with bench.publisher().producer() as producer:
        for number in range(10):
            producer.publish("", exchange=naive.exchange, routing_key=naive.routing_key, headers={"id": f"{number}"})
    eventually(lambda: naive.routing_key not in management.names("queues"))  # a passive declare would renew it

    assert bench.depth(naive.routing_key) is None
    assert bench.depth(work.name) == 0


def test_an_idle_lane_vanishes_and_comes_back_when_it_is_needed(bench, management):
    work = bench.work()
    there = route(LaneRoute(100), bench.names, work, ladder=LADDER, lane_expires_ms=500)
    leases = LaneRenewal(lease_ms=200)
    publisher = bench.publisher()

    for _ in range(2):
        leases.renew(publisher, bench.names, there.lane)
        with publisher.producer() as producer:
            producer.publish("", exchange=there.exchange, routing_key=there.routing_key)
        eventually(lambda: there.routing_key not in management.names("queues"))

    assert bench.depth(there.routing_key) is None
    assert bench.depth(work.name) == 2


def test_a_lease_is_renewed_when_it_is_over_and_not_before(bench):
    there = lane(bench.names, WorkQueue(name=f"{bench.prefix}.work"), 100, expires_ms=60_000)
    (queue,) = there.queues
    leases = LaneRenewal(lease_ms=1_000)
    publisher = bench.publisher()
    started = time.monotonic()
    leases.renew(publisher, bench.names, there)
    bench.connection.default_channel.queue_delete(queue.name)

    leases.renew(publisher, bench.names, there)
    if time.monotonic() < started + 0.9:
        assert bench.depth(queue.name) is None

    eventually(lambda: leases.renew(publisher, bench.names, there) or bench.depth(queue.name) is not None)
    assert time.monotonic() - started >= 1


def keep_publishing(url, prefix, queue, name, stop, results):  # noqa: PLR0913, PLR0917
    """A process that publishes now and then, as workers do; tells what the broker confirmed."""
    leases = LaneRenewal(lease_ms=LEASE_MS)
    names, work = Names(prefix=prefix, kind="classic"), WorkQueue(name=queue)
    there = route(LaneRoute(TTL_MS), names, work, ladder=LADDER, lane_expires_ms=EXPIRES_MS)
    mend = partial(make_lanes, names=names, lanes=there.lane)
    chance = random.Random(name)  # noqa: S311
    confirmed = []
    with closing(Publisher(lambda: Connection(url, connect_timeout=1), confirm_timeout_ms=1_000)) as publisher:
        while not stop.wait(chance.uniform(0.02, 0.3)):
            number = f"{name}.{len(confirmed)}.{chance.random()}"
            try:
                leases.renew(publisher, names, there.lane)
                with publisher.producer(mend=mend) as producer:
                    headers = {"id": number}
                    producer.publish("", exchange=there.exchange, routing_key=there.routing_key, headers=headers)
            except (PublishError, TopologyError):
                continue
            confirmed.append(number)
    results.put(confirmed)


def test_over_a_restart_of_the_broker_lanes_that_expire_and_ladders_lose_nothing(broker, bench, monkeypatch):
    if not broker.can_restart:
        pytest.skip("the broker is not ours to restart")
    work, on_ladder = bench.work(), []
    context = multiprocessing.get_context("fork")
    stop, results = context.Event(), context.Queue()
    arguments = (broker.url, bench.prefix, work.name)
    processes = [
        context.Process(target=keep_publishing, args=(*arguments, name, stop, results)) for name in ("a", "b", "c")
    ]
    for process in processes:
        process.start()
    monkeypatch.setattr(declare_module, "SETTLE_SECONDS", 2.0)
    for kind in ("classic", "quorum"):
        bench.use(kind)
        on_ladder.append(bench.work(kind, name=f"ladder.{kind}"))
        bench.ladder(LADDER, on_ladder[-1])
        for number in range(20):
            send(bench, on_ladder[-1], 100 * (64 + number), ladder=LADDER, number=number)

    broker.restart()
    restarted = time.monotonic()
    eventually(lambda: time.monotonic() > restarted + (TTL_MS + EXPIRES_MS) / 1000 + 0.5)
    stop.set()
    confirmed = {number for _ in processes for number in results.get(timeout=20)}
    for process in processes:
        process.join(20)

    assert len(confirmed) > 30
    arrived = set()
    eventually(lambda: arrived.update(m.headers["id"] for m in bench.take(work.name)) or confirmed <= arrived)
    for queue in on_ladder:
        eventually(lambda: bench.depth(queue.name) == 20)  # noqa: B023
        assert sorted(message.headers["number"] for message in bench.take(queue.name)) == list(range(20))
