"""`celery dlx prune` beside a running worker: every task ends, however often lanes are deleted."""

from __future__ import annotations

import subprocess
from contextlib import ExitStack

import pytest
from amqp.exceptions import NotFound
from kombu.connection import Connection
from support import eventually

from tests.workers import celery


def pruning(project, broker):
    """Start ``celery dlx prune`` in a process of its own."""
    return subprocess.Popen(
        celery("project", "dlx", "prune", "--all", "--yes", "--json"),
        env={**project.environment(), "DLX_MANAGEMENT_URL": broker.management_url},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def healed(project):
    return {row["id"] for row in project.records(retries=1)}


def test_workers_and_prune_in_a_loop_lose_nothing(project, broker):
    sent, deleted = [], 0
    with project.worker(), ExitStack() as stack:
        prune = stack.enter_context(pruning(project, broker))
        while deleted < 3:
            if prune.poll() is not None:
                deleted += prune.stdout.read().count('"deleted": true')
                prune = stack.enter_context(pruning(project, broker))
            sent += [project.send("heal", 1, 0.3 + 0.1 * number).id for number in range(4)]
            most = len(sent) - 8
            eventually(lambda most=most: len(healed(project)) > most, within=60)
        prune.communicate(timeout=60)

        eventually(lambda: set(sent) <= healed(project), within=60)


@pytest.mark.parametrize("by", ["pool process", "main process"])
def test_a_lane_that_is_deleted_while_it_is_made_is_made_again(project, by):
    """The first retry that finds no lane makes it, which takes two seconds; an operator deletes the queue meanwhile.

    A pool process makes the lanes that no task announced, the main process those that it found missing.
    """
    is_announced = by == "main process"
    lane = project.lane(300) if is_announced else project.grid_lane(700)

    def send():
        return project.send("announced") if is_announced else project.send("heal", 1, 0.7)

    with project.worker(module="project_forward"), Connection(project.url) as connection:
        channel = connection.default_channel
        channel.queue_delete(lane)

        def is_made():
            try:
                return channel.queue_declare(lane, passive=True)
            except NotFound:
                return None

        results = [send() for _ in range(5)]
        eventually(is_made)  # over an open connection: the queue must go before it is bound and holds a retry
        # RabbitMQ 3.10 forwards from no lane any more if one is deleted before its forwarder has started.
        assert channel.basic_get(lane) is None
        channel.queue_delete(lane)

        assert [result.get(timeout=30) for result in results] == ["healed"] * 5
        assert send().get(timeout=30) == "healed"
