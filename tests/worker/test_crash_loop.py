"""A message that kills its worker again and again is stopped; those that lay beside it are not blamed."""

from __future__ import annotations

import pytest
from celery import Celery
from celery._state import _set_task_join_will_block
from kombu.connection import Connection
from kombu.messaging import Consumer, Producer
from kombu.utils.uuid import uuid
from support import eventually

from celery_dlx_retry import DLXRetryTask
from celery_dlx_retry.app.context import context_of
from celery_dlx_retry.broker.crash_marks import count, mark, marks_of
from celery_dlx_retry.broker.sync_publisher import Publisher
from celery_dlx_retry.worker.request import DLXRequest


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
    assert project.depth(marks_of(project.names, killer.id, queue=project.queue).name) is None


def test_a_worker_that_was_killed_for_nothing_runs_its_tasks_again_and_leaves_no_mark(project):
    with project.worker(concurrency=2) as worker:
        results = [project.send("slow", 1.0) for _ in range(2)]
        eventually(lambda: len(project.records(event="run")) == 2)
        worker.kill()
    with project.worker(concurrency=2):
        eventually(lambda: len(project.records(event="done")) == 2)

    for result in results:
        assert len(project.records(id=result.id, event="run")) == 2
        assert project.depth(marks_of(project.names, result.id, queue=project.queue).name) is None
    assert project.dead() == []


def test_a_copy_in_another_queue_is_not_blamed(project):
    """A fanout exchange gives the message with its one id to each of its queues; one copy has killed a worker."""
    project.conf["dlx_crash_limit"] = 1
    other, task_id = f"{project.prefix}.other", uuid()
    publisher = Publisher(lambda: Connection(project.url), confirm_timeout_ms=10_000)
    mark(
        publisher,
        marks_of(project.names, task_id, queue=project.queue),
        names=project.names,
        worker="killed/1",
    )

    with project.worker("-Q", other):
        project.send("reject", kwargs={"requeue": True}, queue=other, task_id=task_id)
        (letter,) = eventually(lambda: project.dead(other))

    assert letter.record.reason == "rejected"
    assert len(project.records(id=task_id)) == 2
    publisher.close()


def test_a_worker_that_starts_again_with_its_name_and_its_pid_counts_as_another_one(project):
    """As in a container that is restarted: the same host name, and the main process is number 1 each time."""
    app = Celery("restarted", config_source=dict(project.conf), set_as_current=False)
    task = app.tasks[app.task(_nothing, name="project.kill_worker", base=DLXRetryTask).name]
    publisher, marks = context_of(app).publisher, marks_of(context_of(app).names, uuid(), queue=project.queue)

    found = []
    for _ in range(3):
        app.WorkController(hostname="shop@pod-0", pool="solo")
        worker = _request(app, task).delivery_info.worker
        found.append(count(publisher, marks, worker=worker))
        mark(publisher, marks, names=context_of(app).names, worker=worker)
    found.append(count(publisher, marks, worker=worker))  # of the one that asks, which lives

    assert found == [0, 1, 2, 2]
    app.close()
    _set_task_join_will_block(blocks=False)  # it is this process that has been a worker


def _nothing():
    """A task's body."""


def _request(app, task):
    """What a worker of this app makes of a message that it takes from its queue."""
    received = []
    with Connection(app.conf.broker_url) as connection:
        queue = app.amqp.queues[app.conf.task_default_queue]
        message = app.amqp.as_task_v2(uuid(), task.name, args=[])
        Producer(connection).publish(
            message.body, routing_key=queue.name, declare=[queue], headers=message.headers, serializer="json"
        )
        with Consumer(connection, queues=[queue], on_message=received.append, no_ack=True):
            connection.drain_events(timeout=10)
    return DLXRequest(received[0], app=app, task=task, hostname="shop@pod-0")
