"""A message that kills its worker again and again is stopped; those that lay beside it are not blamed."""

from __future__ import annotations

import pytest
from support import eventually

from celery_dlx_retry.broker.starts import marks_of


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_a_crash_loop_ends_as_a_dead_letter_and_innocents_run(project, kind):
    project.conf |= {"task_default_queue_type": kind, "dlx_crash_limit": 2}
    killer = project.send("kill_worker")
    innocents = [project.send("succeed", number) for number in range(6)]
    flags = ("--prefetch-multiplier", "8")

    # Each worker dies of the killer, with the innocents in its memory.
    for _ in range(3):
        worker = project.start(*flags, concurrency=1)
        eventually(lambda worker=worker: worker.process.poll() is not None, within=30)
    with project.worker(*flags, concurrency=1):
        assert sorted(result.get(timeout=20) for result in innocents) == list(range(6))
        (letter,) = eventually(project.dead)

    assert letter.record.reason == "crash-loop"
    assert letter.record.task_id == killer.id
    assert len(project.records(id=killer.id)) == 3
    for result in innocents:
        assert len(project.records(id=result.id)) == 1
    assert project.depth(marks_of(project.names, killer.id).name) is None


def test_a_worker_that_was_killed_for_nothing_runs_its_tasks_again_and_leaves_no_mark(project):
    with project.worker(concurrency=2) as worker:
        results = [project.send("slow", 1.0) for _ in range(2)]
        eventually(lambda: len(project.records(event="run")) == 2)
        worker.kill()
    with project.worker(concurrency=2):
        eventually(lambda: len(project.records(event="done")) == 2)

    for result in results:
        assert len(project.records(id=result.id, event="run")) == 2
        assert project.depth(marks_of(project.names, result.id).name) is None
    assert project.dead() == []
