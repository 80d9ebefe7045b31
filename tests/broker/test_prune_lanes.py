"""Lanes are found, and an operator can delete those that are no longer used; never with a message in them."""

from __future__ import annotations

import signal
import threading
from contextlib import suppress

import pytest
from support import eventually, put

from celery_dlx_retry.broker import lanes as prune_module
from celery_dlx_retry.broker.lanes import COUNT_SECONDS, existing_lanes, lane_lock, make_lanes, prune
from celery_dlx_retry.broker.management import management_of
from celery_dlx_retry.broker.peek import peek
from celery_dlx_retry.errors import Forbidden, LanesBusy, PublishError, TopologyError
from celery_dlx_retry.topology.names import Lane, Names, WorkQueue
from celery_dlx_retry.topology.objects import lane, shared_objects, work_queue_objects
from celery_dlx_retry.topology.specs import ExchangeSpec, Topology

HOLDS, LOOKED_INTO, USED_AGAIN = "something waits in it", "a process reads it", "in use again"


@pytest.fixture
def api(bench, broker):
    return management_of(bench.connection, broker.management_url)


@pytest.fixture
def work(bench, kind):
    return bench.work(kind)


def a_lane(bench, work, delay_ms=60_000, names=None):
    names = names or bench.names
    bench.lane(work, delay_ms, names=names)
    return names.lane_of(names.lane(work, delay_ms))


def pruned(bench, api, *lanes, count_seconds=COUNT_SECONDS, connection=None):
    eventually(lambda: all("messages" in api.queues().get(it.name, {}) for it in lanes))  # it has been counted
    outcome = prune(connection or bench.connect(), bench.names, lanes, management=api, count_seconds=count_seconds)
    return {each.name: reason for each, reason in outcome}


def takes(bench, lane, work):
    """Whether a message for the lane gets into it."""
    exchange, key = (bench.names.lanes(), lane.name) if lane.queue else (lane.name, work.name)
    channel = bench.connect().channel()
    returned = []
    channel.events["basic_return"].add(lambda *facts: returned.append(facts))
    message = channel.prepare_message(b"", headers={"id": "1"})
    channel.basic_publish_confirm(message, exchange=exchange, routing_key=key, mandatory=True)
    return not returned


def is_bound(api, lane):
    return any(binding.queue == lane.name and binding.exchange for binding in api.bindings())


def test_lanes_are_found_with_and_without_the_http_api(bench, api, work):
    expected = [a_lane(bench, work, 1000), a_lane(bench, work, 60_000)]
    search = {"possible": [bench.names.lane(work, delay_ms) for delay_ms in (500, 1000, 60_000)]}

    over_amqp = existing_lanes(bench.connection, bench.names, **search, management=None)
    over_http = eventually(lambda: existing_lanes(bench.connection, bench.names, **search, management=api))

    assert over_amqp == over_http == expected


def test_what_prune_deletes_and_what_it_keeps(bench, api, work, kind):
    shared = Names(prefix=bench.prefix, kind=kind, bulkheads=1)
    old = Lane(name=f"{bench.prefix}.v1.wait.{kind}.000000060000", kind=kind, delay_ms=60_000)
    empty, full, held, peeked = (a_lane(bench, work, delay_ms) for delay_ms in (60_000, 70_000, 80_000, 90_000))
    empty_shared, full_shared = (a_lane(bench, work, delay_ms, names=shared) for delay_ms in (60_000, 70_000))
    (spec,) = lane(bench.names, work, 60_000).queues
    old_queue = type(spec)(name=old.name, arguments=spec.arguments)
    bench.declare_topology(Topology(exchanges=(ExchangeSpec(name=old.name, kind="fanout"),), queues=(old_queue,)))
    bench.connection.default_channel.queue_bind(old.name, old.name)
    for each in (full, held, peeked, full_shared):
        bench.put(each.name, [1])
    # Over AMQP a lane looks empty while somebody holds what is in it.
    other = bench.connect().channel()
    other.basic_get(peeked.name)
    with peek(bench.connection, held.name, kind=kind) as messages:
        assert len(list(messages)) == 1
        eventually(lambda: api.queues()[held.name].get("consumers"))
        eventually(lambda: all(api.queues()[it.name].get("messages") == 1 for it in (full, peeked, full_shared)))

        outcome = pruned(bench, api, empty, full, held, peeked, empty_shared, full_shared, old)

    assert outcome == {
        empty.name: "",
        full.name: HOLDS,
        held.name: LOOKED_INTO,
        peeked.name: outcome[peeked.name],
        empty_shared.name: "",
        full_shared.name: HOLDS,
        old.name: "",
    }
    assert outcome[peeked.name] in {HOLDS, LOOKED_INTO}  # a quorum queue takes a basic.get for a consumer
    other.close()
    assert [bench.depth(it.name) for it in (empty, empty_shared, old)] == [None] * 3
    assert not any(bench.has_exchange(it.name) for it in (empty_shared, old))
    for each in (full, held, peeked, full_shared):
        eventually(lambda name=each.name: bench.depth(name) == 1)
        assert takes(bench, each, work)


def test_a_lane_whose_work_queue_is_full_is_not_pruned(bench, api):
    """Its expired messages are in no count of AMQP, and the broker would delete them with the queue."""
    bench.use("quorum")
    full = WorkQueue(name=bench.queue("full", "quorum", x_max_length=1, x_overflow="reject-publish"))
    bench.declare_topology(shared_objects(bench.names) | work_queue_objects(bench.names, full))
    put(bench.url, range(3), routing_key=full.name, may_refuse=True)
    blocked = a_lane(bench, full, 100)
    put(bench.url, range(40), exchange=bench.names.lanes(), routing_key=blocked.name)
    eventually(lambda: bench.depth(blocked.name) == 0)

    assert pruned(bench, api, blocked) == {blocked.name: HOLDS}

    assert takes(bench, blocked, full)


def test_a_lane_that_is_bound_again_meanwhile_stays(bench, api, work):
    wanted = a_lane(bench, work)

    def bind_again():
        eventually(lambda: not is_bound(api, wanted))
        make_lanes(bench.connect(), bench.names, lane(bench.names, work, 60_000))

    publisher = threading.Thread(target=bind_again)
    publisher.start()

    assert pruned(bench, api, wanted, count_seconds=3.0) == {wanted.name: USED_AGAIN}
    publisher.join()
    assert takes(bench, wanted, work)


def test_prune_deletes_nothing_while_another_process_holds_the_lock(bench, api, monkeypatch):
    monkeypatch.setattr(prune_module, "_LOCK_SECONDS", 0.5)
    unused, over = a_lane(bench, bench.work()), threading.Event()

    def hold():
        eventually(lambda: not is_bound(api, unused))
        with lane_lock(bench.connect(), bench.names, within=5):
            over.wait(20)

    other = threading.Thread(target=hold)
    other.start()
    with pytest.raises(LanesBusy):
        pruned(bench, api, unused, count_seconds=3.0)
    over.set()
    other.join()

    assert bench.depth(unused.name) == 0


class Cached:
    """The HTTP API of a busy broker, which gives an old answer again."""

    def __init__(self, api):
        self.bindings, self._queues = api.bindings, api.queues()

    def queues(self):
        return self._queues


def test_a_lane_that_the_http_api_has_not_counted_again_is_not_pruned(bench, api, work):
    empty = a_lane(bench, work)
    eventually(lambda: api.queues()[empty.name].get("messages") == 0)
    cached = Cached(api)
    bench.put(empty.name, [1])
    eventually(lambda: bench.depth(empty.name) == 1)

    assert pruned(bench, cached, empty, count_seconds=0.1) == {empty.name: HOLDS}

    assert takes(bench, empty, work)
    assert bench.ids(empty.name)[0] == 1


def test_ctrl_c_leaves_every_lane_bound(bench, api, work):
    lanes = [a_lane(bench, work, delay_ms) for delay_ms in (60_000, 70_000)]

    def interrupt():
        eventually(lambda: not any(is_bound(api, it) for it in lanes))
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    operator = threading.Thread(target=interrupt)
    operator.start()
    with pytest.raises(KeyboardInterrupt):
        pruned(bench, api, *lanes, count_seconds=30.0)
    operator.join()

    assert all(takes(bench, it, work) for it in lanes)


def test_a_user_who_may_not_configure_prunes_nothing(bench, api, limited_url):
    work = bench.work()
    empty = a_lane(bench, work)

    with pytest.raises(Forbidden):
        pruned(bench, api, empty, connection=bench.connect(url=limited_url))

    assert takes(bench, empty, work)


def test_publishing_while_lanes_are_pruned_loses_nothing(bench, api):
    bench.use("quorum")
    work = bench.work("quorum")
    short = a_lane(bench, work, 100)
    publisher = bench.publisher()
    ended = threading.Event()
    outcomes, confirmed = [], []

    def keep_pruning():
        while not ended.is_set():
            if bench.depth(short.name) is not None:
                outcomes.extend(pruned(bench, api, short).values())

    def mend(connection):
        make_lanes(connection, bench.names, lane(bench.names, work, 100))

    pruner = threading.Thread(target=keep_pruning)
    pruner.start()
    try:
        while not (outcomes.count("") and confirmed and confirmed[-1] > 50) and pruner.is_alive():
            # As a worker does: what is not confirmed stays where it is, and is tried again.
            with suppress(PublishError, TopologyError), publisher.producer(mend=mend) as producer:
                number = len(confirmed)
                producer.publish(b"", exchange=bench.names.lanes(), routing_key=short.name, headers={"id": number})
                confirmed.append(number)
            # Now and then so long that the lane is counted empty and deleted.
            ended.wait(0.01 if len(confirmed) % 20 else 2 * COUNT_SECONDS - 1)
    finally:
        ended.set()
        pruner.join()

    assert outcomes.count("") >= 1
    eventually(lambda: bench.depth(work.name) >= len(confirmed))
    assert set(bench.ids(work.name)) == set(confirmed)
