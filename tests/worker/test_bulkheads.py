"""Work queues that share lanes (dlx_bulkheads) do not disturb each other when a lane is missing."""

from __future__ import annotations

from itertools import count

from celery_dlx_retry.topology.names import WorkQueue


def in_another_bulkhead(project):
    """A name for a work queue that shares no lane with the project's own one."""
    own = project.lane(100)
    names = (f"{project.prefix}.added-{number}" for number in count())
    return next(name for name in names if project.names.lane(WorkQueue(name=name), 100) != own)


def test_a_queue_that_is_added_to_a_running_worker_doubles_no_task_of_another_one(project):
    project.conf["dlx_bulkheads"] = 2
    added = in_another_bulkhead(project)
    with project.worker(concurrency=4):
        project.app.control.add_consumer(added, destination=[f"w1.{project.prefix}@h"], reply=True, timeout=10)
        # After a hard time limit the main process knows the queue, and has made one lane of it.
        assert project.send("overrun_once", queue=added).get(timeout=60) == "in time"

        beside = [project.send("by_policy", 1) for _ in range(60)]
        late = [project.send("by_policy", 1, queue=added) for _ in range(3)]
        beside += [project.send("by_policy", 1) for _ in range(60)]
        assert {result.get(timeout=60) for result in (*beside, *late)} == {"up"}

    assert [len(project.records(id=result.id)) for result in (*beside, *late)] == [2] * 123
