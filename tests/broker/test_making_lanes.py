"""A lane is bound when its queue has settled, by one process at a time, and made again when it is gone."""

from __future__ import annotations

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import billiard
import pytest
from kombu.connection import Connection
from support import eventually, put, silenced

from celery_dlx_retry.app.known_lanes import Lanes
from celery_dlx_retry.broker import lanes as lanes_module
from celery_dlx_retry.broker.declare import declare_queues
from celery_dlx_retry.broker.lanes import LaneCreation, LaneLock, lane_lock, make_lanes, make_missing_lanes
from celery_dlx_retry.errors import LanesBusy, Mismatch, NoAnswer
from celery_dlx_retry.settings import Settings
from celery_dlx_retry.topology.names import Names, WorkQueue
from celery_dlx_retry.topology.objects import lane, shared_objects


@pytest.fixture
def work(bench, kind):
    return bench.work(kind)


def a_lane(bench, work):
    return bench.names.lane(work, 60_000), lane(bench.names, work, 60_000)


def is_bound(bench, name):
    """Whether a message for the lane finds its queue."""
    channel = bench.connect().channel()
    returned = []
    channel.events["basic_return"].add(lambda *facts: returned.append(facts))
    channel.basic_publish_confirm(
        channel.prepare_message(b"", headers={"id": "1"}),
        exchange=bench.names.lanes(),
        routing_key=name,
        mandatory=True,
    )
    return not returned


def test_a_new_quorum_lane_is_bound_after_its_queue_has_settled(bench, monkeypatch):
    monkeypatch.setattr(lanes_module, "SETTLE_SECONDS", 2.0)
    bench.use("quorum")
    work = bench.work("quorum")
    name, topology = a_lane(bench, work)

    with ThreadPoolExecutor() as pool:
        first = pool.submit(make_lanes, bench.connect(), bench.names, topology)
        eventually(lambda: bench.depth(name) is not None)
        seen = time.monotonic()
        # Another process needs the same lane, and finds that its queue exists.
        second = pool.submit(make_lanes, bench.connect(), bench.names, topology)
        eventually(lambda: is_bound(bench, name))
        age = time.monotonic() - seen
        first.result()
        second.result()

    assert age >= 1.8


def test_a_lane_whose_queue_is_deleted_before_it_is_bound_is_made_again(bench, work):
    name, topology = a_lane(bench, work)
    making = LaneCreation(bench.connection, bench.names, topology)
    bench.connection.default_channel.queue_delete(name)

    eventually(lambda: making.advance(bench.connection) == 0)

    assert is_bound(bench, name)


def test_a_start_makes_missing_lanes_and_leaves_the_others_alone(bench, work):
    name, topology = a_lane(bench, work)
    other = lane(bench.names, work, 70_000)
    bench.declare_topology(topology)
    bench.connection.default_channel.queue_unbind(name, bench.names.lanes(), name)

    make_missing_lanes(bench.connection, bench.names, topology | other)

    assert is_bound(bench, bench.names.lane(work, 70_000))
    assert not is_bound(bench, name)  # `prune` may be about to delete it


def test_a_start_makes_the_exchange_of_a_shared_lane_whose_queue_exists(bench, kind):
    names = Names(prefix=bench.prefix, kind=kind, bulkheads=1)
    bench.use(kind)
    topology = lane(names, bench.work(kind), 60_000)
    declare_queues(bench.connection, topology)

    make_missing_lanes(bench.connection, names, topology)

    assert bench.has_exchange(topology.exchanges[0].name)


def test_a_lane_with_other_arguments_stops_the_start(bench):
    work = bench.work()
    name, topology = a_lane(bench, work)
    bench.connection.default_channel.queue_declare(name, durable=True, auto_delete=False)

    with pytest.raises(Mismatch):
        make_missing_lanes(bench.connection, bench.names, topology)


def test_nobody_binds_a_lane_while_another_process_holds_the_lock(bench, work):
    name, topology = a_lane(bench, work)
    making = LaneCreation(bench.connection, bench.names, topology)

    with lane_lock(bench.connect(), bench.names, within=0):
        with pytest.raises(LanesBusy):
            making.advance(bench.connection)
        assert not is_bound(bench, name)

    eventually(lambda: is_free(bench))
    eventually(lambda: making.advance(bench.connection) == 0)
    assert is_bound(bench, name)


def test_a_lane_that_does_not_answer_is_not_bound(bench, broker):
    if not broker.can_restart:
        pytest.skip("needs a broker that it may disturb")
    bench.use("quorum")
    work = bench.work("quorum")
    name, topology = a_lane(bench, work)
    declare_queues(bench.connection, topology)

    with silenced(broker, name):
        started = time.monotonic()
        with pytest.raises(NoAnswer) as caught:
            make_lanes(bench.connection, bench.names, topology)

    assert caught.value.name == name
    assert time.monotonic() - started < 20
    assert not is_bound(bench, name)


def test_a_quorum_lane_that_died_young_is_named_and_works_once_the_operator_has_deleted_it(bench, broker):
    if not broker.can_restart:
        pytest.skip("this broker is not ours to kill")
    bench.use("quorum")
    work = bench.work("quorum")
    name, topology = a_lane(bench, work)
    declare_queues(bench.connection, topology)

    broker.kill()
    broker.start()
    # Up to RabbitMQ 4.0 its name may come back without the queue.
    eventually(lambda: is_made_or_silent_ones_are_deleted(bench, topology), within=40)

    assert is_bound(bench, name)


def is_made_or_silent_ones_are_deleted(bench, topology):
    """As an operator does who knows that it is empty."""
    try:
        make_lanes(bench.connect(), bench.names, shared_objects(bench.names) | topology)
    except NoAnswer as problem:
        bench.connect().default_channel.queue_delete(problem.name)
        return False
    return True


def test_the_lock_of_one_prefix_holds_up_no_other(bench):
    with lane_lock(bench.connection, bench.names, within=0):
        LaneLock(bench.connection, Names(prefix=f"{bench.prefix}-other")).release()


def test_the_lock_is_free_when_its_owner_was_killed(bench):
    def hold(url, names, held):
        with lane_lock(Connection(url), names, within=0):
            held.set()
            threading.Event().wait(60)

    held = billiard.Event()
    owner = billiard.Process(target=hold, args=(bench.url, bench.names, held))
    owner.start()
    assert held.wait(20)
    assert not is_free(bench)

    os.kill(owner.pid, signal.SIGKILL)
    owner.join()

    eventually(lambda: is_free(bench))


@pytest.fixture
def known(bench, kind):
    """What a worker knows of lanes; many of its retries may wait for the same lane."""
    bench.use(kind)
    return Lanes(Settings(prefix=bench.prefix, queue_type=kind), bench.names, announced=frozenset())


def test_a_lane_is_made_once_for_all_retries_that_wait_for_it(bench, work, known):
    there = known.plain(work, 60_000)
    eventually(lambda: known.knows(there) or known.make(bench.connection, there) == 0)

    with lane_lock(bench.connect(), bench.names, within=2):
        assert [known.make(bench.connection, there) for _ in range(3)] == [0.0] * 3


def test_all_retries_that_wait_for_the_lock_ask_for_it_once(bench, work, known, monkeypatch):
    asked = []

    def ask(connection, names):
        asked.append(names)
        return LaneLock(connection, names)

    monkeypatch.setattr(lanes_module, "BUSY_SECONDS", 5.0)
    there = known.plain(work, 60_000)
    with lane_lock(bench.connect(), bench.names, within=2):
        monkeypatch.setattr(lanes_module, "LaneLock", ask)
        eventually(lambda: known.make(bench.connection, there) and asked)
        pauses = [known.make(bench.connection, there) for _ in range(10)]

    assert len(asked) == 1
    assert all(0 < pause <= 5 for pause in pauses)


def test_only_the_first_retry_waits_for_a_lane_that_does_not_answer(bench, broker):
    if not broker.can_restart:
        pytest.skip("needs a broker that it may disturb")
    bench.use("quorum")
    work = bench.work("quorum")
    known = Lanes(Settings(prefix=bench.prefix), bench.names, announced=frozenset())
    there = known.plain(work, 60_000)
    declare_queues(bench.connection, there.lane)

    def is_silent():
        try:
            known.make(bench.connection, there)
        except NoAnswer:
            return True
        return False

    with silenced(broker, there.routing_key):
        eventually(is_silent)
        begun = time.monotonic()
        assert is_silent()

    assert time.monotonic() - begun < 2


def is_free(bench):
    try:
        LaneLock(bench.connection, bench.names).release()
    except LanesBusy:
        return False
    return True


def test_a_message_of_a_shared_lane_comes_back_to_its_own_work_queue(bench, kind):
    names = Names(prefix=bench.prefix, kind=kind, bulkheads=1)
    works = [WorkQueue(name=bench.work(kind, name=name).name) for name in ("one", "two")]
    ways = [bench.lane(work, 100, names=names) for work in works]
    bench.declare_topology(shared_objects(names))
    assert len({there.exchange for there in ways}) == 1

    for number, there in enumerate(ways):
        put(bench.url, [number], exchange=there.exchange, routing_key=there.routing_key)

    eventually(lambda: [bench.depth(work.name) for work in works] == [1, 1])
    assert [bench.ids(work.name) for work in works] == [[0], [1]]
