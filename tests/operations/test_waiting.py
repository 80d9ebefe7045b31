"""Tasks that wait: list them, run some, cancel some, and stop in the middle."""

from __future__ import annotations

import threading

import pytest

from celery_dlx_retry.broker.dead_letters import browse
from celery_dlx_retry.events import DeadLettered
from celery_dlx_retry.operations.monitor import Audited, Monitor
from celery_dlx_retry.operations.topology import declare_topology
from celery_dlx_retry.operations.waiting import cancel_waiting, count_waiting, list_waiting, run_waiting
from celery_dlx_retry.policy.reasons import Reason


@pytest.fixture
def ids(session, charge):
    """Five tasks that wait ten minutes."""
    declare_topology(session)
    return [charge() for _ in range(5)]


def waiting_ids(session):
    return {it.task_id for it in list_waiting(session).tasks}


def test_the_list_has_the_tasks_that_wait_the_next_one_first(session, ids, charge, prefix):
    sooner = charge(60)

    found = list_waiting(session)

    assert found.tasks[0].task_id == sooner
    assert {it.task_id for it in found.tasks} == {*ids, sooner}
    assert {(it.task, it.queue) for it in found.tasks} == {("shop.charge", f"{prefix}.work")}
    assert (found.total, found.problems, found.is_cancelled) == (6, (), False)


def test_a_list_has_filters_and_a_limit_and_reports_its_progress(session, ids):
    steps = []
    monitor = Monitor(progress=lambda done, total: steps.append((done, total)))

    found = list_waiting(session, task="shop.*", limit=2, monitor=monitor)

    assert len(found.tasks) == 2
    assert steps[0] == (1, len(ids))
    assert list_waiting(session, task="other").tasks == ()


def test_a_name_without_a_queue_is_missing_and_a_pattern_is_not(session, prefix):
    assert list_waiting(session, queue=f"{prefix}.nowhere").is_queue_missing
    assert not list_waiting(session, queue=f"{prefix}.*").is_queue_missing


def test_a_list_that_is_cancelled_leaves_all_tasks_in_their_lanes(session, ids):
    cancel = threading.Event()
    monitor = Monitor(progress=lambda *_: cancel.set(), cancel=cancel)

    found = list_waiting(session, task="shop.*", monitor=monitor)

    assert found.is_cancelled
    assert waiting_ids(session) == set(ids)


def test_tasks_are_cancelled_and_the_rest_keeps_waiting(session, ids, audited):
    result = cancel_waiting(session, [ids[0], "unknown"])

    assert (result.moved, result.missing, result.is_complete) == ((ids[0],), ("unknown",), False)
    assert waiting_ids(session) == set(ids[1:])
    assert audited[-1] == "audit waiting cancel by=anna@web asked=2 moved=1"
    queue = session.names.dead_letters(session.work_queues[0].name)
    (letter,) = browse(session.connection, queue)
    assert (letter.record.task_id, letter.record.reason) == (ids[0], Reason.REQUESTED)
    assert letter.record.error == "while it waited, by anna@web"


def test_a_task_that_is_cancelled_is_a_dead_letter_for_subscribers(session, ids, events, prefix):
    events.clear()  # of the countdowns

    cancel_waiting(session, [ids[0], "unknown"])

    assert events == [
        DeadLettered(
            task="shop.charge",
            task_id=ids[0],
            queue=f"{prefix}.work",
            reason=Reason.REQUESTED,
            attempts=0,
            group=events[0].group,
            error_type="Cancelled",
            error="while it waited, by anna@web",
            worker="",
        )
    ]


def test_a_task_that_keeps_waiting_is_no_dead_letter_for_subscribers(session, ids, events, prefix):
    session.connection.default_channel.queue_delete(session.names.dead_letters(f"{prefix}.work"))
    events.clear()

    assert [task_id for task_id, _ in cancel_waiting(session, ids[:1]).kept] == ids[:1]
    assert events == []


def test_an_operation_that_is_cancelled_in_the_middle_says_what_it_has_done(session, ids, audited):
    cancel, seen = threading.Event(), []

    def stop_after_two(notice):
        if isinstance(notice, Audited):
            return
        seen.append(notice)
        if len(seen) == 2:
            cancel.set()

    result = cancel_waiting(session, ids, monitor=Monitor(notice=stop_after_two, cancel=cancel))

    assert result.moved == tuple(it.task.task_id for it in seen)
    assert len(result.moved) == 2
    assert (set(result.skipped), result.missing) == (set(ids) - set(result.moved), ())
    assert waiting_ids(session) == set(result.skipped)
    assert audited[-1].endswith("asked=5 moved=2")
    assert cancel_waiting(session, result.skipped).is_complete


def test_an_error_of_the_monitor_is_not_one_of_the_broker(session, ids, audited):
    def fail(*_):
        raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        cancel_waiting(session, ids, monitor=Monitor(progress=fail))

    assert audited[-1].endswith("asked=5 moved=1")
    assert len(waiting_ids(session)) == 4


def test_a_task_runs_now(session, ids, prefix):
    steps = []

    result = run_waiting(session, ids[:2], monitor=Monitor(progress=lambda *step: steps.append(step)))

    assert set(result.moved) == set(ids[:2])
    assert result.is_complete
    assert steps == [(1, 2), (2, 2)]
    assert count_waiting(session, ids) == 3
    depth = session.connection.default_channel.queue_declare(f"{prefix}.work", passive=True).message_count
    assert depth == 2


def test_a_task_whose_work_queue_is_gone_keeps_waiting_and_says_why(session, ids, prefix):
    session.connection.default_channel.queue_delete(f"{prefix}.work")

    result = run_waiting(session, ids[:1])

    ((task_id, problem),) = result.kept
    assert task_id == ids[0]
    assert problem.startswith("No queue takes messages for exchange")
    assert count_waiting(session, ids) == 5
