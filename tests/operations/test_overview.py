"""The one screen as a value, on a real broker."""

from __future__ import annotations

import json
import time
from dataclasses import asdict

import pytest
from amqp import Message
from support import eventually

from celery_dlx_retry.app.context import context_of
from celery_dlx_retry.broker.dead_letters import browse
from celery_dlx_retry.broker.work_queues import work_queue
from celery_dlx_retry.operations.app_queues import work_queues_of
from celery_dlx_retry.operations.overview import LATELY_MINUTES, OverviewReader, read_letters
from celery_dlx_retry.operations.session import open_session
from celery_dlx_retry.operations.topology import declare_topology
from celery_dlx_retry.policy.reasons import Reason
from celery_dlx_retry.wire.dead_record import DeadRecord
from tests.unit.letters import a_message


@pytest.fixture
def bury(app, session):
    """Make a dead letter as a worker does."""
    (queue,) = map(work_queue, work_queues_of(app))

    def make(task_id, *, minutes_ago=0, **facts):
        record = DeadRecord(
            **{
                "reason": Reason.FAILED, "task": "shop.charge", "task_id": task_id, "queue": queue.name,
                "dead_letter_key": queue.dead_letter_key, "worker": "w@h", "attempts": 1, "error_type": "KeyError",
                "died_at_ms": time.time_ns() // 1_000_000 - minutes_ago * 60_000, **facts,
            }
        )  # fmt: skip
        message = a_message(headers={"id": task_id, "task": record.task})
        context_of(app).publish_dead(message, queue, record)

    declare_topology(session)
    return make


def problems(overview):
    return {it.code for it in overview.problems}


def line_of(overview, queue):
    return next(it for it in overview.queues if it.queue == queue)


def test_a_work_queue_is_one_line_with_all_that_it_has(app, session, bury, charge, prefix):
    for number in range(3):
        bury(f"{number}", minutes_ago=0 if number else LATELY_MINUTES + 1)
    app.tasks["shop.charge"].delay(1)
    charge(600)
    charge(600)
    reader = OverviewReader(session)

    found = eventually(lambda: (it := line_of(reader.read(), f"{prefix}.work")).waiting == 2 and it.dead == 3 and it)

    assert (found.ready, found.workers, found.exists) == (1, 0, True)
    assert 590_000 < found.next_ms - time.time_ns() // 1_000_000 <= 600_000
    with_letters = reader.with_letters(read_letters(app, queues=[f"{prefix}.work"]))
    assert line_of(with_letters, f"{prefix}.work").dead_lately == 2
    assert [(it.count, it.error, it.tasks) for it in with_letters.groups] == [(3, "KeyError", {"shop.charge": 3})]
    assert problems(with_letters) == {"no-worker"}


def test_a_deleted_work_queue_and_its_orphans_are_wrong_now(session, bury, charge, prefix):
    bury("dead")
    assert "work-queue-missing" not in problems(OverviewReader(session).read())
    charge(600)
    charge(2)

    session.connection.default_channel.queue_delete(f"{prefix}.work")

    found = eventually(lambda: (it := OverviewReader(session).read()).orphans == 1 and it)
    assert problems(found) >= {"work-queue-missing", "orphans"}
    assert (line_of(found, f"{prefix}.work").exists, line_of(found, f"{prefix}.work").dead) == (False, 1)
    assert any(f"'{prefix}.work' does not exist, and 1 task wait" in it.fact for it in found.problems)


def test_a_deleted_queue_that_only_a_worker_named_is_remembered_by_its_dead_letters(app, session, bury, prefix):
    if session.management is None:
        pytest.skip("no HTTP API")
    other = f"{prefix}.only-by-q"
    with open_session(app, queues=[other], management_url=session.management.url) as named:
        declare_topology(named)
        named.connection.default_channel.queue_delete(other)
    bury("dead", queue=other)
    session.connection.default_channel.queue_bind(f"{other}.dead", session.names.dead(), other)
    session.connection.default_channel.basic_publish(Message("{}"), exchange=session.names.dead(), routing_key=other)

    found = eventually(lambda: (it := OverviewReader(session).read()).dead == 2 and it)

    assert (line_of(found, other).exists, line_of(found, other).dead) == (False, 1)
    assert "work-queue-missing" in problems(found)


def test_a_task_in_a_crash_loop_is_wrong_now(app, session, bury, prefix):
    bury("a", reason=Reason.CRASH_LOOP)
    bury("b", reason=Reason.WORKER_LOST)
    bury("c", reason=Reason.CRASH_LOOP, task="shop.refund", minutes_ago=LATELY_MINUTES + 1)
    reader = OverviewReader(session)
    reader.read()

    found = reader.with_letters(read_letters(app, queues=[f"{prefix}.work"]))

    (crash,) = (it for it in found.problems if it.code == "crash-loop")
    assert crash.fact == "The task shop.charge kills its process: 2 dead letters in ten minutes."


def test_an_app_that_has_never_run_has_no_problem(session):
    found = OverviewReader(session).read()

    assert (found.problems, found.dead, found.orphans, found.groups) == ((), 0, 0, None)


def test_looking_changes_no_order_and_the_value_is_json(app, session, bury, prefix):
    for number in range(30):
        bury(f"{number:02}")
    reader = OverviewReader(session)
    eventually(lambda: reader.read().dead == 30)

    for _ in range(3):
        reader.read()
        found = reader.with_letters(read_letters(app, queues=[f"{prefix}.work"]))

    ids = [it.record.task_id for it in browse(session.connection, f"{prefix}.work.dead")]
    assert ids == [f"{number:02}" for number in range(30)]
    assert json.loads(json.dumps(asdict(found)))["groups"][0]["count"] == 30


def test_depths_are_kept_while_this_process_reads_the_letters(session, bury, prefix):
    bury("a")
    reader = OverviewReader(session)
    eventually(lambda: reader.read().dead == 1)

    with open_session(session.app) as other:
        held = browse(other.connection, f"{prefix}.work.dead")
        assert next(held).record.task_id == "a"
        assert reader.read(keep_depths=True).dead == 1
        assert reader.read().dead == 0
        held.close()
