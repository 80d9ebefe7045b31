"""Tasks that wait can be looked at, run and cancelled; all others keep their places and their time."""

from __future__ import annotations

import time
from contextlib import closing, suppress
from dataclasses import replace

import pytest
from amqp import Message as RawMessage
from support import eventually, put, shown

from celery_dlx_retry.broker.counts import counts
from celery_dlx_retry.broker.peek import peek
from celery_dlx_retry.broker.waiting import take, waiting
from celery_dlx_retry.errors import Missing, QueueBusy, Unpublishable, Unroutable
from celery_dlx_retry.topology.names import Lane
from celery_dlx_retry.wire.headers import PARKED_AT, Failure, with_failure

# Generous: the machine that runs this may be busy. Each claim about order and about "not early" is exact.
LATE_MS = 700
DELAY_MS = 800


class Road:
    """A work queue, a lane, and a clock on what passes them."""

    def __init__(self, bench, kind, delay_ms):
        self.bench, self.delay_ms = bench, delay_ms
        self.work = bench.work(kind)
        self.way = bench.lane(self.work, delay_ms)
        name = bench.names.lane(self.work, delay_ms)
        self.lane = Lane(name=name, kind=kind, delay_ms=delay_ms, queue=self.work.name)
        self.sent = {}
        self._channel = bench.connect().channel()
        self._channel.confirm_select()

    def send(self, *ids, failed_at_ms=None, **more):
        """Into the lane, as a worker does; returns when the broker has them."""
        for each in ids:
            at_ms = failed_at_ms or now_ms()
            failure = Failure(attempt=1, at_ms=at_ms, error="OSError: down", delay_ms=self.delay_ms, worker="w@h")
            headers = {"id": each, "task": "shop.charge", "retries": 1, **with_failure({}, failure), **more}
            message = RawMessage(f"body of {each}", application_headers=headers, delivery_mode=2)
            self.sent[each] = time.monotonic()
            self._channel.basic_publish_confirm(message, exchange=self.way.exchange, routing_key=self.way.routing_key)

    def arrivals(self, count):
        """The next so many that come back: id -> how many ms after they were sent."""
        back = {}
        connection = self.bench.connect()
        with closing(connection.channel()) as channel:

            def note(message):
                each = message.headers["id"]
                back.setdefault(each, (time.monotonic() - self.sent[each]) * 1000)

            def drained():
                with suppress(TimeoutError):
                    while len(back) < count:
                        connection.drain_events(timeout=0.2)
                return len(back) >= count

            channel.basic_consume(self.work.name, no_ack=True, callback=note)

            eventually(drained)
        return back


def now_ms():
    return time.time_ns() // 1_000_000


@pytest.fixture
def road(bench, kind):
    return Road(bench, kind, DELAY_MS)


def test_who_waits_is_told_with_work_queue_and_due_time_next_one_first(road, bench):
    before = now_ms()
    road.send("a", "b", "c")

    found = list(waiting(bench.connection, road.lane))

    assert [task.task_id for task in found] == ["a", "b", "c"]
    assert {(task.task, task.queue, task.lane, task.retry, task.error) for task in found} == {
        ("shop.charge", road.work.name, road.lane.name, 1, "OSError: down")
    }
    assert all(before + DELAY_MS <= task.due_ms <= now_ms() + DELAY_MS for task in found)


def test_a_task_that_its_breaker_parked_is_due_when_that_is_asked_again(road, bench):
    hours_ago, before = now_ms() - 3_600_000, now_ms()
    road.send("parked", failed_at_ms=hours_ago, **{PARKED_AT: before})
    road.send("failed since", **{PARKED_AT: hours_ago})

    parked, failed = waiting(bench.connection, road.lane)

    assert (parked.parked, parked.due_ms) == (True, before + DELAY_MS)
    assert (failed.parked, failed.due_ms >= before + DELAY_MS) == (False, True)


def test_a_look_changes_neither_order_nor_due_time(road, bench):
    road.send("a", "b", "c")
    for limit in (1, 2, None):
        list(waiting(bench.connection, road.lane, limit=limit))
    with peek(bench.connection, road.lane.name, kind=road.lane.kind) as messages:
        assert [seen.message.headers["id"] for seen in messages] == ["a", "b", "c"]
        road.send("d")  # comes while the others are held

    back = road.arrivals(4)

    assert list(back) == ["a", "b", "c", "d"]
    assert min(back.values()) >= DELAY_MS
    assert max(back.values()) < DELAY_MS + LATE_MS


def test_looks_at_many_leave_order_and_due_times(bench, kind):
    road = Road(bench, kind, 3_000)
    ids = [str(number) for number in range(150)]
    road.sent = dict.fromkeys(ids, time.monotonic())
    put(bench.url, ids, exchange=road.way.exchange, routing_key=road.way.routing_key)
    for limit in (1, 2, None):
        list(waiting(bench.connection, road.lane, limit=limit))

    back = road.arrivals(150)

    assert list(back) == ids
    assert min(back.values()) >= road.delay_ms
    assert max(back.values()) < road.delay_ms + LATE_MS


def test_what_falls_due_while_it_is_looked_at_comes_back_as_soon_as_the_look_ends(bench, kind):
    road = Road(bench, kind, 300)
    road.send("a", "b")
    with peek(bench.connection, road.lane.name, kind=road.lane.kind) as messages:
        assert len(list(messages)) == 2
        eventually(lambda: time.monotonic() - road.sent["b"] > 0.6)
        released = time.monotonic()

    back = road.arrivals(2)

    assert list(back) == ["a", "b"]
    assert max(back.values()) < (released - road.sent["a"]) * 1000 + LATE_MS


def test_one_taken_out_of_the_middle_leaves_the_others_their_places_and_their_time(road, bench):
    handed = []
    road.send("a", "b", "c")

    taken = list(
        take(bench.connection, road.lane, {"b"}, hand_over=lambda seen, task: handed.append((seen.message.body, task)))
    )

    assert [(bytes(body) if isinstance(body, memoryview) else body) for body, _ in handed] == [b"body of b"]
    assert [(task.task_id, problem) for task, problem in taken] == [("b", None)]
    back = road.arrivals(2)
    assert list(back) == ["a", "c"]
    assert min(back.values()) >= DELAY_MS
    assert max(back.values()) < DELAY_MS + LATE_MS


@pytest.mark.parametrize(
    "why", [Unroutable(exchange="", routing_key="gone"), Unpublishable(what="a header", problem="is odd")], ids=shown
)
def test_what_cannot_be_handed_over_keeps_waiting(road, bench, why):
    road.send("a", "b")

    def refuse(_seen, _task):
        raise why

    ((task, problem),) = take(bench.connection, road.lane, {"a"}, hand_over=refuse)

    assert (task.task_id, problem) == ("a", why)
    assert list(road.arrivals(2)) == ["a", "b"]


def test_a_task_that_is_back_at_once_is_not_taken_again(bench, kind):
    road = Road(bench, kind, 60_000)
    road.send("a", "b")

    taken = list(take(bench.connection, road.lane, {"a"}, hand_over=lambda *_: road.send("a")))

    assert len(taken) == 1
    assert [task.task_id for task in waiting(bench.connection, road.lane)] == ["b", "a"]


def test_a_look_ends_although_others_go_on_putting_in(bench, kind):
    road = Road(bench, kind, 60_000)
    road.send("a", "b")
    with peek(bench.connection, road.lane.name, kind=kind) as messages:
        count = 0
        for count, _ in enumerate(messages, start=1):
            road.send(f"new {count}")

    assert 2 <= count <= 104


def test_a_filter_reads_past_those_that_it_does_not_want(road, bench):
    road.send("a", "b", "c")

    found = list(waiting(bench.connection, road.lane, limit=1, wanted=lambda task: task.task_id > "a"))

    assert [task.task_id for task in found] == ["b"]


def test_on_a_rung_the_next_one_is_the_one_that_is_due_first(bench, kind):
    road = Road(bench, kind, 60_000)
    rung = replace(road.lane, is_rung=True)
    for each, hour in (("a", 12), ("b", 10), ("unknown", None), ("c", 11)):
        road.send(each, **({"eta": f"2040-01-01T{hour}:00:00+00:00"} if hour else {}))

    assert [task.task_id for task in waiting(bench.connection, rung, limit=2)] == ["b", "c"]
    assert [task.task_id for task in waiting(bench.connection, rung)] == ["b", "c", "a", "unknown"]
    assert [task.task_id for task in waiting(bench.connection, road.lane)] == ["a", "b", "unknown", "c"]


def test_two_who_look_into_a_classic_lane_at_once_do_no_harm(bench):
    road = Road(bench, "classic", DELAY_MS)
    road.send("a", "b", "c")
    with peek(bench.connection, road.lane.name, kind="classic", limit=2) as first:
        mine = [seen.message.headers["id"] for seen in first]
        theirs = [task.task_id for task in waiting(bench.connect(), road.lane)]

    assert (mine, theirs) == (["a", "b"], ["c"])
    assert list(road.arrivals(3)) == ["a", "b", "c"]


def test_the_second_to_look_into_a_quorum_lane_is_told_to_wait(bench):
    road = Road(bench, "quorum", 60_000)
    road.send("a")
    with peek(bench.connection, road.lane.name, kind="quorum") as messages:
        next(messages)

        with pytest.raises(QueueBusy, match="try again"):
            list(waiting(bench.connect(), road.lane))

    assert [task.task_id for task in waiting(bench.connect(), road.lane)] == ["a"]


def test_a_look_that_loses_its_connection_loses_no_message(road, bench):
    road.send("a", "b")
    other = bench.connect()

    def look():
        with peek(other, road.lane.name, kind=road.lane.kind) as messages:
            next(messages)
            raise OSError("cable")

    with pytest.raises(OSError, match="cable"):
        look()

    assert list(road.arrivals(2)) == ["a", "b"]


@pytest.mark.parametrize("history", ["rubbish", '[[1, 1e300, "x", 5, "w"]]', '[[1, -9, "x", 5, "w"]]', None])
def test_a_task_whose_history_is_no_use_is_told_without_a_due_time(bench, history):
    road = Road(bench, "classic", 60_000)
    headers = {"id": 7, "task": None, "retries": "many"} | ({"dlx-history": history} if history else {})
    road._channel.basic_publish_confirm(
        RawMessage("", application_headers=headers), exchange=road.way.exchange, routing_key=road.way.routing_key
    )

    (task,) = waiting(bench.connection, road.lane)

    assert (task.task_id, task.due_ms, task.retry) == ("7", None, 0)


def test_an_empty_queue_is_looked_at_without_waiting(bench):
    road = Road(bench, "classic", 60_000)
    start = time.monotonic()

    assert list(waiting(bench.connection, road.lane)) == []
    assert time.monotonic() - start < 0.9


def test_a_queue_that_is_not_there_is_missing(bench):
    with pytest.raises(Missing):
        list(waiting(bench.connection, Lane(name=f"{bench.prefix}.no", kind="classic", delay_ms=1)))


def test_only_queues_that_exist_are_counted(bench):
    there = bench.queue("there")
    bench.put(there, range(3))

    found = counts(bench.connection, [f"{bench.prefix}.no", there, f"{bench.prefix}.neither"])

    assert {name: (each.ready, each.consumers) for name, each in found.items()} == {there: (3, 0)}
