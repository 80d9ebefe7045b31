"""A work queue that takes no messages holds up nobody else's retries and countdowns."""

from __future__ import annotations

import pytest
from support import eventually, put

from celery_dlx_retry.topology.ladder import Ladder
from celery_dlx_retry.topology.names import Names, WorkQueue
from celery_dlx_retry.topology.objects import shared_objects, work_queue_objects
from celery_dlx_retry.topology.wait_route import LadderRoute, route

BLOCKED, HEALTHY = 60, 50  # 32 in flight block a lane
LADDER = Ladder(resolution_ms=100, rungs=4)


@pytest.fixture
def full(bench):
    """A work queue that is full and refuses more."""
    bench.use("quorum")
    queue = WorkQueue(name=bench.queue("full", "quorum", x_max_length=1, x_overflow="reject-publish"))
    bench.declare_topology(shared_objects(bench.names) | work_queue_objects(bench.names, queue))
    put(bench.url, range(3), routing_key=queue.name, may_refuse=True)
    return queue


@pytest.fixture
def healthy(bench, full):  # noqa: ARG001 - the same names
    return bench.work("quorum", name="healthy")


def test_a_full_work_queue_holds_up_no_other_one(bench, full, healthy):
    ways = [bench.lane(work, 300) for work in (full, healthy)]

    for there, count in zip(ways, (BLOCKED, HEALTHY), strict=True):
        put(bench.url, range(count), exchange=there.exchange, routing_key=there.routing_key)

    eventually(lambda: bench.depth(healthy.name) == HEALTHY)
    assert sorted(bench.ids(healthy.name)) == list(range(HEALTHY))


def test_a_full_work_queue_holds_up_no_countdown_of_another_one(bench, full, healthy):
    bench.ladder(LADDER, full, healthy)
    steps = LADDER.steps(500)

    for work, count in ((full, BLOCKED), (healthy, HEALTHY)):
        there = route(LadderRoute(steps, LADDER.length_ms(steps)), bench.names, work, ladder=LADDER)
        put(bench.url, range(count), exchange=there.exchange, routing_key=there.routing_key, headers=there.headers)

    eventually(lambda: bench.depth(healthy.name) == HEALTHY)
    assert sorted(bench.ids(healthy.name)) == list(range(HEALTHY))


def test_work_queues_of_one_bulkhead_do_hold_each_other_up(bench, full, healthy):
    """What dlx_bulkheads costs, and why it is not the default."""
    names = Names(prefix=bench.prefix, kind="quorum", bulkheads=1)
    ways = [bench.lane(work, 300, names=names) for work in (full, healthy)]

    put(bench.url, range(BLOCKED), exchange=ways[0].exchange, routing_key=ways[0].routing_key)
    eventually(lambda: bench.depth(ways[0].exchange) == 0)
    put(bench.url, range(HEALTHY), exchange=ways[1].exchange, routing_key=ways[1].routing_key)
    eventually(lambda: bench.depth(ways[1].exchange) == 0)

    assert bench.depth(healthy.name) < HEALTHY
