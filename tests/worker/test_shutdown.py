"""However a worker ends, with retries in every stage of their way, the next one finds all of them."""

from __future__ import annotations

import os
import signal
from collections import Counter

import pytest
from kombu.connection import Connection
from support import eventually

FLAGS = ("--prefetch-multiplier", "4")
LONG_SECONDS = 3.0


class Plans:
    """Tasks that were sent, and how each is to end."""

    def __init__(self, project):
        self._project = project
        self.ends = {}

    def send(self, end, **kwargs):
        result = self._project.send("plan", end, kwargs=kwargs)
        self.ends[result.id] = end
        return result.id

    def ids(self, end):
        return {task_id for task_id, planned in self.ends.items() if planned == end}

    def wait(self, within=60):
        """Until each has come to its end, and nothing is left over on any way."""
        eventually(lambda: self.ids("done") <= self._recorded("done"), within=within)
        eventually(
            lambda: self.ids("dead") <= {letter.record.task_id for letter in self._project.dead()}, within=within
        )

    def ends_twice(self):
        """How many ids have come to their end more often than once."""
        done = Counter(row["id"] for row in self._project.records(event="done"))
        dead = Counter(letter.record.task_id for letter in self._project.dead())
        return sum(1 for count in (done + dead).values() if count > 1)

    def assert_ended_as_planned(self):
        done, dead = self._recorded("done"), {letter.record.task_id for letter in self._project.dead()}
        assert done == self.ids("done")
        assert dead == self.ids("dead")
        assert {letter.record.reason for letter in self._project.dead()} <= {"failed"}

    def _recorded(self, event):
        return {row["id"] for row in self._project.records(event=event)}


@pytest.fixture
def plans(project):
    return Plans(project)


def send_a_mix(plans):
    """Some fail at once and often, some late, some wait, and there is more than the worker prefetches."""
    for _ in range(12):
        plans.send("done", failures=3, countdown=0.05)
        plans.send("dead", failures=1, countdown=0.05)
    for _ in range(4):
        plans.send("done", failures=1, countdown=4.0)
    for _ in range(6):
        plans.send("done", failures=1, countdown=0.1, seconds=0.3)


def unacknowledged(project, broker):
    rows = [line.split() for line in broker.ctl("list_queues", "name", "messages").splitlines()]
    return {name: int(count) for name, count in rows if name.startswith(project.prefix) and name != "name"}


def end(worker, *signals):
    for number in signals:
        os.kill(worker.process.pid, number)
    worker.process.wait(30)


@pytest.mark.parametrize(
    ("signals", "ends_twice"),
    [
        pytest.param([signal.SIGTERM], 0, id="warm"),
        pytest.param([signal.SIGTERM, signal.SIGTERM], 0, id="warm-twice"),
        # What was handed over and not yet acknowledged runs again: at most one for each process of the pool.
        pytest.param([signal.SIGQUIT], 2, id="cold"),
        # The same, and what the main process had finished and not yet acknowledged.
        pytest.param([signal.SIGKILL], 10, id="main-process-killed"),
    ],
)
def test_the_next_worker_ends_everything_as_planned(project, plans, broker, signals, ends_twice):
    worker = project.start(*FLAGS, module="project_fire").wait_until_ready()
    long = plans.send("done", seconds=LONG_SECONDS)
    eventually(lambda: project.records(id=long, event="run"))
    send_a_mix(plans)
    eventually(lambda: len(project.records(event="worked")) >= 10)

    end(worker, *signals)
    is_cut_off = not project.records(id=long, event="worked")

    with project.worker(*FLAGS, module="project_fire"):
        plans.wait()
        eventually(lambda: project.depth(project.queue) == 0)

    plans.assert_ended_as_planned()
    assert plans.ends_twice() <= ends_twice
    # Acknowledged is what was finished: the long one ran again exactly if it was cut off.
    if signals[0] == signal.SIGTERM:
        assert not is_cut_off
        assert len(project.records(id=long, event="run")) == 1
    if signals[0] == signal.SIGQUIT:
        assert is_cut_off
        assert len(project.records(id=long, event="run")) == 2
    left = unacknowledged(project, broker)
    assert left.pop(project.names.dead_letters(project.queue)) == len(project.dead())
    assert set(left.values()) == {0}


def test_with_a_new_process_for_every_task_all_retries_are_published(project, plans):
    for _ in range(4):
        plans.send("done", failures=2, countdown=0.1)
        plans.send("dead", failures=1, countdown=0.1)

    with project.worker("--max-tasks-per-child", "1", module="project_fire"):
        plans.wait()

    plans.assert_ended_as_planned()
    assert plans.ends_twice() == 0
    runs = project.records(event="run")
    assert len(runs) == 4 * 3 + 4 * 2
    assert len({run["pid"] for run in runs}) == len(runs)


def test_a_task_that_forks_before_its_retry_leaves_the_connection_to_its_process(project):
    forked = f"{project.queue}.forked"
    with Connection(project.url) as connection:
        connection.default_channel.queue_declare(forked, durable=True, auto_delete=False)

    with project.worker(module="project_fire", concurrency=1) as worker:
        sent = [project.send("fork", 3).id for _ in range(3)]
        eventually(lambda: {row["id"] for row in project.records(event="done")} == set(sent))

    assert len(project.records(event="run")) == len(sent) * 4
    assert {row["status"] for row in project.records(event="forked")} == {0}
    assert project.depth(forked) == len(sent) * 4
    assert project.dead() == []
    assert "not handed over" not in worker.log
