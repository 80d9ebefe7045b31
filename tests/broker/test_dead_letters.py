"""Dead letters can be looked at without harm, and put back to work without loss."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest
from support import eventually

import celery_dlx_retry
from celery_dlx_retry.broker import bound_publish as straight
from celery_dlx_retry.broker.dead_letters import browse, replay
from celery_dlx_retry.broker.declare import declare
from celery_dlx_retry.broker.paged_reader import PAGE
from celery_dlx_retry.errors import Missing, Unroutable
from celery_dlx_retry.policy.reasons import Reason
from celery_dlx_retry.topology.names import WorkQueue
from celery_dlx_retry.topology.objects import shared_objects, work_queue_objects
from celery_dlx_retry.wire.dead_record import DeadRecord, with_record
from celery_dlx_retry.wire.headers import Failure, with_failure

REPLAYING = """
import os, signal, sys
from kombu.connection import Connection
from celery_dlx_retry.broker import sync_publisher as publish
from celery_dlx_retry.broker.dead_letters import replay
from celery_dlx_retry.topology.names import Names

url, queue, prefix, kind, when = sys.argv[1:]
if when == "between":
    class Killed(publish.ConfirmedProducer):
        count = 0
        def publish_message(self, *args, **kwargs):
            super().publish_message(*args, **kwargs)
            Killed.count += 1
            if Killed.count == 30:
                os.kill(os.getpid(), signal.SIGKILL)
    publish.ConfirmedProducer = Killed
publisher = publish.Publisher(lambda: Connection(url), confirm_timeout_ms=10_000)
names = Names(prefix=prefix, kind=kind)
for letter, _ in replay(Connection(url), queue, names=names, publisher=publisher, wanted=lambda letter: True):
    print(letter.record.task_id, flush=True)
"""


def dead_record(number, *, queue):
    return DeadRecord(
        reason=Reason.EXHAUSTED,
        task="shop.charge",
        task_id=str(number),
        queue=queue,
        dead_letter_key=queue,
        worker="w@host",
        attempts=4,
        died_at_ms=1_700_000_000_000,
        error_type="ValueError",
        error="no",
        traceback="Traceback …",
    )


def bury(bench, work, ids, *, lying=0):
    """Dead letters of a work queue, made as a worker makes them."""
    publisher = bench.publisher()
    for number in ids:
        failure = Failure(attempt=4, at_ms=1_000, error="ValueError: no", delay_ms=None, worker="w")
        record = dead_record(number, queue=work.name)
        headers = with_record(with_failure({"id": str(number), "task": "shop.charge", "retries": 3}, failure), record)
        with publisher.producer() as producer:
            producer.publish(
                [[number], {}, {}], exchange=bench.names.dead(), routing_key=work.dead_letter_key, headers=headers
            )
    queue = bench.names.dead_letters(work.dead_letter_key)
    eventually(lambda: bench.depth(queue) == lying + len(ids))
    return queue


def task_ids(letters):
    return [int(letter.record.task_id) for letter in letters]


def everyone(_):
    return True


def test_a_dead_letter_tells_how_it_died(bench, kind):
    work = bench.work(kind)
    queue = bury(bench, work, [1])

    (letter,) = browse(bench.connection, queue)

    assert (letter.record.reason, letter.record.queue, letter.record.attempts) == ("exhausted", work.name, 4)
    assert (letter.record.error_type, letter.record.error) == ("ValueError", "no")
    assert [failure.error for failure in letter.history] == ["ValueError: no"]
    assert letter.replays == 0
    assert letter.message.body == b"[[1], {}, {}]"


def test_a_hundred_looks_leave_every_dead_letter_there(bench, kind):
    queue = bury(bench, bench.work(kind), range(5))

    for _ in range(100):
        # A quorum queue confirms the return of a message before it counts it.
        eventually(lambda: bench.depth(queue) == 5)
        assert task_ids(browse(bench.connection, queue)) == [0, 1, 2, 3, 4]

    eventually(lambda: bench.depth(queue) == 5)
    assert bench.ids(queue) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("whose", ["ours", "not ours"])
def test_looks_at_many_leave_them_in_order(bench, kind, whose):
    # Without our delivery limit RabbitMQ 3.10 takes back in another way.
    ours, others = bench.names.dead_letters(bench.work(kind).dead_letter_key), bench.queue("other.dead", kind)
    queue = ours if whose == "ours" else others
    count = 10 * PAGE + 50
    bench.put(queue, range(count))

    for _ in range(3):
        eventually(lambda: bench.depth(queue) == count)
        assert task_ids(browse(bench.connection, queue)) == list(range(count))


def test_thirty_looks_at_the_first_alone_leave_every_dead_letter_there(bench, kind):
    queue = bury(bench, bench.work(kind), range(5))

    for _ in range(30):
        eventually(lambda: bench.depth(queue) == 5)
        with closing(browse(bench.connection, queue)) as letters:
            next(letters)

    eventually(lambda: bench.depth(queue) == 5)
    assert sorted(bench.ids(queue)) == [0, 1, 2, 3, 4]


def test_thirty_looks_do_not_use_up_the_limit_of_a_queue_that_is_not_ours(bench, broker):
    queue = bench.queue("work.dead", "quorum")  # RabbitMQ 4 drops at the 21st return that it counts
    bench.put(queue, range(5))
    counts_every_look = broker.version.startswith("4.0.")

    for _ in range(20 if counts_every_look else 30):
        eventually(lambda: bench.depth(queue) == 5)
        assert task_ids(browse(bench.connection, queue)) == [0, 1, 2, 3, 4]

    eventually(lambda: bench.depth(queue) == 5)
    if counts_every_look:
        assert len(task_ids(browse(bench.connection, queue))) == 5
        eventually(lambda: bench.depth(queue) == 0)


def test_a_look_that_ends_with_a_lost_connection_leaves_every_dead_letter_there(bench, kind):
    queue = bury(bench, bench.work(kind), range(5))

    for _ in range(30):
        connection = bench.connect()
        letters = browse(connection, queue)
        next(letters)
        connection.collect()
        eventually(lambda: bench.depth(queue) == 5)

    assert sorted(bench.ids(queue)) == [0, 1, 2, 3, 4]


def test_two_who_look_at_once_do_no_harm(bench, kind):
    queue = bury(bench, bench.work(kind), range(6))

    with closing(browse(bench.connection, queue)) as ours:
        seen = task_ids([next(ours), next(ours)])
        theirs = task_ids(browse(bench.connect(), queue))

    assert seen == [0, 1]
    assert not {0, 1} & set(theirs)  # nor what else is on its way to us
    eventually(lambda: bench.depth(queue) == 6)
    assert sorted(bench.ids(queue)) == list(range(6))


def test_an_absent_dead_letter_queue_is_missing(bench):
    with pytest.raises(Missing) as caught:
        list(browse(bench.connection, f"{bench.prefix}.no.dead"))

    assert caught.value.name == f"{bench.prefix}.no.dead"


def test_what_somebody_put_there_by_hand_is_shown_too(bench):
    queue = bench.queue("work.dead")
    bench.put(queue, [1], headers={"task": "shop.charge"})

    (letter,) = browse(bench.connection, queue)

    assert (letter.record.reason, letter.record.task, letter.record.task_id) == ("invalid", "shop.charge", "1")
    assert letter.record.queue == ""


def test_a_thousand_dead_letters_are_browsed_within_seconds(bench, kind):
    queue = bench.queue("work.dead", kind)
    bench.put(queue, range(1000))
    started = time.monotonic()

    letters = list(browse(bench.connection, queue))

    assert time.monotonic() - started < 15
    assert task_ids(letters) == list(range(1000))
    eventually(lambda: bench.depth(queue) == 1000)


def test_a_replayed_letter_is_as_new_but_remembers(bench, kind):
    work = bench.work(kind)
    queue = bury(bench, work, [1])

    ((letter, _),) = replay(bench.connection, queue, names=bench.names, publisher=bench.publisher(), wanted=everyone)

    (message,) = bench.take(work.name)
    assert letter.record.task_id == "1"
    assert message.body == b"[[1], {}, {}]"
    assert (message.headers["id"], message.headers["retries"], message.headers["dlx-replays"]) == ("1", 0, 1)
    assert "ValueError: no" in message.headers["dlx-history"]
    assert not [key for key in message.headers if key.startswith("dlx-dead-")]
    assert bench.depth(queue) == 0


def test_only_the_wanted_are_replayed(bench, kind):
    work = bench.work(kind)
    queue = bury(bench, work, range(6))

    moved = replay(
        bench.connection,
        queue,
        names=bench.names,
        publisher=bench.publisher(),
        wanted=lambda letter: int(letter.record.task_id) % 2,
    )

    assert task_ids(letter for letter, _ in moved) == [1, 3, 5]
    assert bench.ids(work.name) == [1, 3, 5]
    eventually(lambda: bench.depth(queue) == 3)
    assert bench.ids(queue) == [0, 2, 4]


def test_who_stops_a_replay_leaves_the_rest_where_it_is(bench, kind):
    work = bench.work(kind)
    queue = bury(bench, work, range(6))

    with closing(
        replay(bench.connection, queue, names=bench.names, publisher=bench.publisher(), wanted=everyone)
    ) as moving:
        moved = task_ids([next(moving)[0], next(moving)[0]])

    assert moved == [0, 1]
    assert bench.ids(work.name) == [0, 1]
    eventually(lambda: bench.depth(queue) == 4)
    assert bench.ids(queue) == [2, 3, 4, 5]


def test_a_letter_whose_work_queue_is_gone_stays(bench, kind):
    work = bench.work(kind)
    queue = bury(bench, work, range(2))
    bench.connection.default_channel.queue_delete(work.name)

    tried = list(replay(bench.connection, queue, names=bench.names, publisher=bench.publisher(), wanted=everyone))

    assert [problem.routing_key for _, problem in tried] == [work.name, work.name]
    eventually(lambda: bench.depth(queue) == 2)
    assert bench.ids(queue) == [0, 1]


def test_a_work_queue_that_is_deleted_during_a_replay_keeps_the_rest_as_dead_letters(bench, kind, monkeypatch):
    """The return exchange would take them for orphans, and the broker would confirm that."""
    monkeypatch.setattr(straight, "FRESH_SECONDS", 0.0)
    work = bench.work(kind)
    queue = bury(bench, work, range(3))

    with closing(
        replay(bench.connection, queue, names=bench.names, publisher=bench.publisher(), wanted=everyone)
    ) as tried:
        assert next(tried)[1] is None
        bench.connection.default_channel.queue_delete(work.name)
        assert [type(problem) for _, problem in tried] == [Unroutable, Unroutable]

    eventually(lambda: bench.depth(queue) == 2)
    assert bench.ids(queue) == [1, 2]
    assert bench.depth(bench.names.orphans()) == 0


def test_a_letter_goes_back_to_an_exclusive_queue_that_its_worker_has_bound(bench):
    """Nobody but the worker's own connection may bind it."""
    work = WorkQueue(name=f"{bench.prefix}.mine")
    connection = bench.connect()
    channel = connection.default_channel
    channel.queue_declare(work.name, exclusive=True, auto_delete=False)
    declare(connection, shared_objects(bench.names) | work_queue_objects(bench.names, work))
    queue = bury(bench, work, range(2))

    moved = list(replay(bench.connection, queue, names=bench.names, publisher=bench.publisher(), wanted=everyone))

    assert [problem for _, problem in moved] == [None, None]
    assert [channel.basic_get(work.name).headers["id"] for _ in range(2)] == ["0", "1"]


def test_a_letter_that_cannot_be_replayed_does_not_hold_up_the_others(bench):
    work = bench.work("classic")
    queue = bury(bench, work, [1])
    bench.put(queue, [0])  # by hand: nobody knows where it belongs
    bury(bench, work, [2], lying=2)

    tried = list(replay(bench.connection, queue, names=bench.names, publisher=bench.publisher(), wanted=everyone))

    assert [problem is None for _, problem in tried] == [True, False, True]
    assert bench.ids(work.name) == [1, 2]
    eventually(lambda: bench.depth(queue) == 1)


def test_what_dies_again_while_a_replay_runs_waits_for_the_next_one(bench):
    bench.declare_topology(shared_objects(bench.names))
    queue = bench.queue("work.dead")
    bench.put(queue, range(3), headers=with_record({}, dead_record(0, queue=queue)))  # it dies as soon as it is there

    moved = list(replay(bench.connection, queue, names=bench.names, publisher=bench.publisher(), wanted=everyone))

    assert [problem for _, problem in moved] == [None] * 3
    assert bench.depth(queue) == 3


@pytest.mark.parametrize("when", ["between", "midway"])
def test_a_replay_that_is_killed_loses_nothing_and_doubles_one_at_most(bench, kind, when):
    work = bench.work(kind)
    queue = bury(bench, work, range(200))
    process = subprocess.Popen(
        [sys.executable, "-c", REPLAYING, bench.url, queue, bench.prefix, kind, when],
        cwd=Path(celery_dlx_retry.__file__).parents[1],
        stdout=subprocess.PIPE,
    )

    with process:
        for _, _ in zip(range(29), process.stdout, strict=False):
            pass
        if when == "midway":
            process.kill()
        code = process.wait(20)
    eventually(lambda: bench.depth(queue) + bench.depth(work.name) >= 200)

    there = Counter(bench.ids(queue) + bench.ids(work.name))
    assert code == -signal.SIGKILL
    assert set(there) == set(range(200))
    doubled = sum(there.values()) - 200
    assert doubled == 1 if when == "between" else doubled <= 1
