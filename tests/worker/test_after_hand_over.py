"""What goes wrong after the message has been handed over does not make a second one of it."""

from __future__ import annotations

import pytest
from support import eventually


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_hook_that_raises_leaves_one_message(project, pool):
    with project.worker(pool=pool):
        retried, dead = project.send("stubborn", 1), project.send("stubborn", 0)
        eventually(lambda: len(project.records(id=retried.id)) == 2)
        (letter,) = eventually(project.dead)
        assert project.send("succeed", 1).get(timeout=10) == 1
        scheduled = project.app.control.inspect(timeout=5).active()

    assert scheduled == {f"w1.{project.prefix}@h": []}
    assert letter.record.task_id == dead.id
    assert len(project.dead()) == 1
    assert project.depth(project.queue) == 0
    assert len(project.records(id=dead.id)) == 1


def test_a_task_out_of_memory_is_one_dead_letter_and_the_worker_lives(project):
    with project.worker() as worker:
        result = project.send("hungry")
        (letter,) = eventually(project.dead)
        assert project.send("succeed", 1).get(timeout=10) == 1
        assert worker.process.poll() is None

    assert (letter.record.task_id, letter.record.reason) == (result.id, "failed")
    assert len(project.dead()) == 1
    assert project.depth(project.queue) == 0


def test_a_rejection_that_cannot_be_pickled_is_one_dead_letter(project):
    with project.worker():
        project.send("reject_oddly")
        eventually(project.dead)
        assert project.send("succeed", 1).get(timeout=10) == 1

    assert [str(letter.record.reason) for letter in project.dead()] == ["rejected"]


def test_a_retry_that_cannot_be_encoded_is_a_dead_letter_with_the_old_arguments(project):
    with project.worker():
        result = project.send("mutate")
        (letter,) = eventually(project.dead)

    assert (letter.record.task_id, letter.record.error_type) == (result.id, "EncodeError")
    assert len(project.records(id=result.id)) == 1


def test_a_body_that_exits_is_retried_by_a_pool_of_threads_too(project):
    with project.worker(pool="threads"):
        assert project.send("crash", 1, "exit").get(timeout=20) == "alive"


def test_a_dead_letter_whose_time_is_past_runs_when_it_is_replayed(project):
    with project.worker():
        result = project.send("by_policy", expires=1)
        eventually(lambda: project.dead() or None)
        expired = project.dead()[0]
        eventually(lambda: expired.record.died_at_ms > 0)
        replayed = project.celery("dlx", "dead", "replay", "-q", project.queue, "--all", "--yes")
        eventually(lambda: len(project.records(id=result.id)) == 6)

    assert "1 replayed" in replayed.stdout
