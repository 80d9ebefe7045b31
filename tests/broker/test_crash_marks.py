"""Marks of runs that nobody ended: counted, kept over a restart of the broker, and gone once forgotten."""

from __future__ import annotations

import pytest

from celery_dlx_retry.broker.crash_marks import count, forget, mark, marks_of
from celery_dlx_retry.topology.specs import QueueSpec

ODD_IDS = {
    "empty": "",
    "spaces and slashes": " /../ a\tb\n",
    "AMQP's own": "amq.gen-1",
    "wildcards": "#.*.{}%s",
    "umlauts": "Ä-ß-\N{SNOWMAN}-\U0001f600",
    "a lone surrogate": "\ud800",
    "nul": "\x00",
    "longer than a queue name": "x" * 100_000,
}


@pytest.fixture
def marks(bench):
    return marks_of(bench.names, "8f14e45f", queue="orders")


def test_the_queue_of_marks_is_classic_and_expires_after_a_day_unused(bench, marks):
    assert marks == QueueSpec(
        name=f"{bench.prefix}.v1.starts.f5b35accac5b454c7a0dc7029e4111fa",
        arguments=(("x-queue-type", "classic"), ("x-expires", 86_400_000)),
    )


def test_marks_are_counted_until_they_are_forgotten(bench, marks):
    publisher = bench.publisher()
    assert count(publisher, marks, worker="me/2") == 0

    counts = []
    for _ in range(3):
        mark(publisher, marks, names=bench.names, worker="other/1")
        counts.append(count(publisher, marks, worker="me/2"))
    forget(publisher, marks)

    assert counts == [1, 2, 3]
    assert count(publisher, marks, worker="me/2") == 0
    assert bench.depth(marks.name) is None


def test_to_count_and_to_forget_what_was_never_marked_makes_no_queue_and_no_error(bench, marks):
    publisher = bench.publisher()

    assert count(publisher, marks, worker="me/2") == 0
    forget(publisher, marks)

    assert bench.depth(marks.name) is None


def test_a_count_of_nothing_leaves_the_connection_good_for_the_mark(bench, marks):
    publisher = bench.publisher()

    assert count(publisher, marks, worker="me/2") == 0
    ((before, _),) = publisher._idle
    mark(publisher, marks, names=bench.names, worker="other/1")

    assert count(bench.publisher(), marks, worker="me/2") == 1
    assert [idle for idle, _ in publisher._idle] == [before]


def test_marks_belong_to_one_task_one_queue_and_one_prefix(bench, marks):
    publisher = bench.publisher()
    others = [
        marks_of(bench.names, "8f14e45e", queue="orders"),
        marks_of(bench.names, "8f14e45f", queue="mails"),
        marks_of(type(bench.names)(prefix=f"{bench.prefix}b"), "8f14e45f", queue="orders"),
    ]
    for one in (marks, *others):
        mark(publisher, one, names=bench.names, worker="other/1")

    forget(publisher, marks)

    assert [count(publisher, one, worker="me/2") for one in (marks, *others)] == [0, 1, 1, 1]


def test_after_being_forgotten_they_count_from_the_start(bench, marks):
    publisher = bench.publisher()
    mark(publisher, marks, names=bench.names, worker="other/1")
    mark(publisher, marks, names=bench.names, worker="other/1")
    forget(publisher, marks)

    mark(publisher, marks, names=bench.names, worker="other/1")

    assert count(publisher, marks, worker="me/2") == 1


def test_marks_survive_a_restart_of_the_broker(bench, broker, marks):
    mark(bench.publisher(), marks, names=bench.names, worker="other/1")
    mark(bench.publisher(), marks, names=bench.names, worker="other/1")

    broker.restart()

    assert count(bench.publisher(), marks, worker="me/2") == 2


def test_the_broker_takes_every_task_id_and_keeps_them_apart(bench):
    publisher = bench.publisher()
    every = [marks_of(bench.names, task_id, queue="orders") for task_id in ODD_IDS.values()]

    for one in every:
        mark(publisher, one, names=bench.names, worker="other/1")

    assert len({one.name for one in every}) == len(ODD_IDS)
    assert [count(publisher, one, worker="me/2") for one in every] == [1] * len(ODD_IDS)


def test_marks_of_the_worker_that_asks_do_not_count_for_it_is_alive(bench, marks):
    publisher = bench.publisher()
    mark(publisher, marks, names=bench.names, worker="me/2")
    mark(publisher, marks, names=bench.names, worker="other/1")

    assert count(publisher, marks, worker="me/2") == 1
    assert count(publisher, marks, worker="me/3") == 2
