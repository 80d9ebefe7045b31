"""A worker starts while a queue or the broker does not answer: it waits, says so, and deletes nothing."""

from __future__ import annotations

import pytest
from kombu.connection import Connection
from support import eventually, proxied, put, silenced

from celery_dlx_retry.broker.declare import declare_queues
from celery_dlx_retry.broker.lanes import lane_lock
from celery_dlx_retry.topology.names import WorkQueue
from celery_dlx_retry.topology.objects import lane

LETTERS = range(100)


@pytest.fixture
def letters(project, broker):
    """A full dead-letter queue whose app has a new prefix: no exchange of that one leads to it yet."""
    if not broker.can_restart:
        pytest.skip("needs a broker that it may disturb")
    with project.worker():
        name = project.names.dead_letters(project.queue)
    put(project.url, LETTERS, routing_key=name)
    project.conf["dlx_prefix"] = f"{project.prefix}.new"
    return name


def test_a_worker_waits_for_a_dead_letter_queue_that_recovers_and_keeps_its_letters(project, broker, letters):
    with silenced(broker, letters):
        worker = project.start()
        eventually(lambda: f"The quorum queue '{letters}' does not answer yet; waiting" in worker.log, within=40)

    worker.wait_until_ready()
    eventually(lambda: project.depth(letters) == len(LETTERS))


def test_a_worker_stops_with_one_sentence_when_a_queue_does_not_answer_in_time(project, broker, letters):
    with silenced(broker, letters):
        worker = project.start(module="project_impatient")
        eventually(lambda: worker.process.poll() is not None, within=40)

    assert worker.process.returncode not in {0, None}
    assert f"The quorum queue '{letters}' exists and did not answer within 5 s" in worker.log
    assert "Traceback" not in worker.log
    eventually(lambda: project.depth(letters) == len(LETTERS))


def test_a_worker_waits_while_another_process_holds_the_lock_of_the_lanes(project):
    with Connection(project.url) as connection, lane_lock(connection, project.names, within=0):
        worker = project.start(module="project_impatient")
        eventually(lambda: "Other processes hold the lock of the lanes; waiting" in worker.log, within=40)

    worker.wait_until_ready()


def test_a_worker_whose_declare_is_not_answered_says_so_and_connects_again(project):
    swallowed = []

    def swallow_one_declare(data):
        if not swallowed and project.names.orphans().encode() in data:
            swallowed.append(data)
            return b""
        return data

    with proxied(project.url, to_broker=swallow_one_declare) as url:
        project.conf["broker_url"] = url
        with project.worker(module="project_impatient") as worker:
            assert "The broker did not answer within 3 s" in worker.log
            assert "The worker start has waited" in worker.log
            project.conf["broker_url"] = project.url
            assert project.send("heal", 1, 0.1).get(timeout=30) == "healed"


def test_a_worker_says_so_when_a_declare_of_celery_is_not_answered(project):
    with Connection(project.url) as connection:
        connection.default_channel.queue_declare(project.queue, durable=True, auto_delete=False)
    name = project.queue.encode()

    with proxied(project.url, to_broker=lambda data: b"" if name in data else data) as url:
        project.conf["broker_url"] = url
        worker = project.start(module="project_impatient")

        eventually(
            lambda: "The worker start has waited 2 s for the broker, in the step Tasks." in worker.log, within=30
        )
        worker.kill()


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_retry_takes_the_next_longer_lane_if_its_own_does_not_answer(project, broker, pool):
    """A quorum queue whose broker crashed while it was young exists and may never answer."""
    if not broker.can_restart:
        pytest.skip("needs a broker that it may disturb")
    silent = project.grid_lane(700)
    made = lane(project.names, WorkQueue(name=project.queue), project.names.lane_of(silent).delay_ms)
    with Connection(project.url) as connection:
        declare_queues(connection, made)

    with project.worker(pool=pool, concurrency=1), silenced(broker, silent):
        result = project.send("heal", 1, 0.7)
        eventually(lambda: project.records(id=result.id, retries=1), within=60)

    assert [run["retries"] for run in project.records(id=result.id)] == [0, 0, 1]
