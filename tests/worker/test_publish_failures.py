"""When a retry or a dead letter cannot be handed over, its task stays on its queue: not lost, not spinning."""

from __future__ import annotations

from itertools import pairwise

import pytest
from kombu.connection import Connection
from support import eventually

from celery_dlx_retry.broker.declare import declare
from celery_dlx_retry.topology.names import WorkQueue
from celery_dlx_retry.topology.objects import lane


@pytest.fixture
def policy(broker, prefix):
    """Set a policy on queues of this test, and take it off again."""
    yield lambda pattern, definition: broker.ctl("set_policy", prefix, pattern, definition, "--apply-to", "queues")
    broker.ctl("clear_policy", prefix)


@pytest.fixture
def memory_alarm(broker):
    """Make the broker stop reading what publishers send, as it does when memory is short."""
    yield lambda: broker.ctl("set_vm_memory_high_watermark", "0.0000001")
    broker.ctl("set_vm_memory_high_watermark", "0.4")


def assert_it_was_paced(project, result):
    """Each time it was given back it waited before it ran again: a hot loop makes hundreds of runs a second."""
    at = [run["at"] for run in project.records(id=result.id, retries=0)]
    gaps = [after - before for before, after in pairwise(at)]
    assert len(gaps) >= 2
    assert min(gaps) >= 0.4


def test_a_retry_that_a_full_lane_refuses_leaves_the_task_on_its_queue(project, policy):
    project.conf["dlx_queue_type"] = "classic"  # whose limit is exact
    policy(f"^{project.grid_lane(200)}$", '{"max-length": 0, "overflow": "reject-publish"}')
    with project.worker() as worker:
        result = project.send("heal", 1)

        eventually(lambda: len(project.records(id=result.id)) >= 3)
        assert "The broker refused the message" in worker.log
        assert result.state == "PENDING"
        policy("^nothing$", '{"max-length": 0}')

        assert result.get(timeout=20) == "healed"

    assert_it_was_paced(project, result)
    assert project.dead() == []


def test_when_the_limit_of_a_lane_is_lifted_every_refused_task_goes_on(project, policy):
    """RabbitMQ 3.10 keeps refusing on the channel that it has refused once."""
    with project.worker(module="project_forward") as worker:
        policy(f"^{project.lane(300)}$", '{"max-length": 1, "overflow": "reject-publish"}')
        results = [project.send("announced") for _ in range(40)]
        eventually(lambda: worker.log.count("The broker refused the message") >= 20)
        policy("^nothing$", '{"max-length": 1}')

        assert {result.get(timeout=60) for result in results} == {"healed"}

    assert project.dead() == []


def test_a_retry_without_a_lane_leaves_the_task_on_its_queue(project):
    with project.worker():
        pass  # declares what the next one only checks
    with project.worker("--dlx-check-only") as worker:
        result = project.send("heal", 1, 1.5)

        eventually(lambda: len(project.records(id=result.id)) >= 3)
        assert "No queue takes messages" in worker.log
        with Connection(project.url) as connection:
            length_ms = project.names.lane_of(project.grid_lane(1500)).delay_ms
            declare(connection, lane(project.names, WorkQueue(name=project.queue), length_ms))

        assert result.get(timeout=30) == "healed"

    assert_it_was_paced(project, result)


@pytest.mark.parametrize("countdown", [0.3, 0.45], ids=["main process", "pool process"])
def test_a_retry_that_is_not_confirmed_in_time_leaves_the_task_on_its_queue(
    project, memory_alarm, broker, tmp_path, countdown
):
    gate = tmp_path / "gate"
    with project.worker("--dlx-confirm-timeout", "0.5", module="project_forward") as worker:
        result = project.send("gated", str(gate), countdown)
        eventually(lambda: project.records(id=result.id))

        memory_alarm()
        gate.touch()
        eventually(lambda: worker.log.count("not handed over") >= 3, within=60)
        broker.ctl("set_vm_memory_high_watermark", "0.4")

        assert result.get(timeout=30) == "healed"

    assert "did not confirm within 500 ms" in worker.log
    assert project.dead() == []
    # Each connection was new, and showed that nobody reads before the retry was written to it.
    assert len(project.records(id=result.id, retries=0)) >= 3
    assert len(project.records(id=result.id, retries=1)) == 1


def test_a_dead_letter_that_is_refused_leaves_the_task_on_its_queue(project, policy):
    project.conf["dlx_queue_type"] = "classic"
    policy(f"^{project.names.dead_letters(project.queue)}$", '{"max-length": 0, "overflow": "reject-publish"}')
    with project.worker():
        result = project.send("fail")

        eventually(lambda: len(project.records(id=result.id)) >= 3)
        assert result.state == "PENDING"
        policy("^nothing$", '{"max-length": 0}')
        (letter,) = eventually(project.dead)

    assert letter.record.task_id == result.id
    assert_it_was_paced(project, result)
