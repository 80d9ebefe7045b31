"""RabbitMQ 4.3's own delayed retry for what killed its worker: as it says there, and refused where it is not."""

from __future__ import annotations

from kombu.entity import Queue
from support import eventually

FIRST, NEXT = 2.0, 3.0  # of project_patient.py


def test_what_killed_its_worker_comes_back_later_each_time_or_the_worker_says_why_not(project, broker):
    if tuple(map(int, broker.version.split(".")[:2])) < (4, 3):
        worker = project.start(module="project_patient")
        eventually(lambda: worker.process.poll() is not None, within=40)

        assert worker.process.returncode
        assert (
            f"The broker is RabbitMQ {broker.version}: it ignores the delayed_retry of the queue '{project.queue}'"
            in worker.log
        )
        assert "Traceback" not in worker.log
        return

    project.conf["dlx_crash_limit"] = 2
    project.app.conf.task_queues = [Queue(project.queue, no_declare=True)]
    # All of them stand ready, so that without the delay it would come back in milliseconds.
    for worker in [project.start(module="project_patient", concurrency=1) for _ in range(4)]:
        worker.wait_until_ready()
    killer = project.send("kill_worker")
    (letter,) = eventually(project.dead)

    first, second, third = (run["at"] for run in project.records(id=killer.id))
    assert second - first >= FIRST
    assert third - second >= NEXT
    assert letter.record.reason == "crash-loop"
