"""However a worker ends, with retries in every stage of their way, the next one finds all of them."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest
from kombu.connection import Connection
from support import eventually

from tests.worker.plans import Plans

FLAGS = ("--prefetch-multiplier", "4")


@pytest.fixture
def plans(project):
    return Plans(project)


def send_a_mix(plans):
    """Some fail at once and often, some work, some wait, and there are more than the worker prefetches."""
    for _ in range(12):
        plans.send("done", failures=3, countdown=0.05)
        plans.send("dead", failures=1, countdown=0.05)
    for _ in range(4):
        plans.send("done", failures=1, countdown=3.0)
    for _ in range(6):
        plans.send("done", failures=1, countdown=0.1, seconds=0.3)


def left_over(project, broker):
    """Messages in the queues of this test, those that a worker holds included."""
    rows = (line.split() for line in broker.ctl("list_queues", "name", "messages").splitlines())
    return {name: int(count) for name, count in rows if name.startswith(project.prefix) and int(count)}


def end(worker, *signals):
    """Whether it ended by itself."""
    for number in signals:
        os.kill(worker.process.pid, number)
    try:
        worker.process.wait(30)
    except subprocess.TimeoutExpired:
        # Celery's cold shutdown works in the signal handler, and waits for ever for the one result whose handling it
        # has interrupted. Whoever supervises a worker ends it so, and nothing may be lost by that either.
        assert signals == (signal.SIGQUIT,)
        worker.kill()
        return False
    return True


@pytest.mark.parametrize(
    ("signals", "extra_ends"),
    [
        pytest.param([signal.SIGTERM], 0, id="warm"),
        pytest.param([signal.SIGTERM, signal.SIGTERM], 0, id="warm-twice"),
        # What is handed over and not acknowledged yet runs again: the main process may have published all that it has.
        pytest.param([signal.SIGQUIT], 8, id="cold"),
        # The same, and what the orphaned processes finish before they find out: no more than was prefetched.
        pytest.param([signal.SIGKILL], 8, id="main-process-killed"),
    ],
)
def test_the_next_worker_ends_everything_as_planned(project, plans, broker, signals, extra_ends):
    worker = project.start(*FLAGS, module="project_fire").wait_until_ready()
    long = plans.send("done", seconds=3.0)
    eventually(lambda: project.records(id=long, event="run"))
    send_a_mix(plans)
    eventually(lambda: len(project.records(event="worked")) >= 10)

    has_ended = end(worker, *signals)
    is_cut_off = not project.records(id=long, event="worked")

    with project.worker(*FLAGS, module="project_fire"):
        plans.wait()

    plans.assert_ended_as_planned(extra_ends=extra_ends)
    # What is acknowledged is finished: the long one ran again exactly if it was cut off.
    if signals[0] == signal.SIGTERM:
        assert not is_cut_off
        assert len(project.records(id=long, event="run")) == 1
    if signals[0] == signal.SIGQUIT and has_ended:
        assert is_cut_off
        assert len(project.records(id=long, event="run")) == 2
    kept = {project.names.dead_letters(project.queue): len(project.dead())}
    eventually(lambda: left_over(project, broker) == kept)  # a quorum queue tells its length every five seconds


def test_what_a_pool_process_was_given_and_has_not_begun_runs_once_and_is_acknowledged(project, plans, broker):
    worker = project.start(concurrency=1, module="project_fire").wait_until_ready()
    (child,) = children(worker)
    os.kill(child, signal.SIGSTOP)
    given = plans.send("done")
    eventually(lambda: f"[{given}] received" in worker.log)
    assert project.app.control.ping(timeout=5)  # and with that it is in the process's pipe

    os.kill(worker.process.pid, signal.SIGTERM)
    eventually(lambda: consumers(project) == 0)  # the worker waits for its pool now
    os.kill(child, signal.SIGCONT)
    worker.process.wait(30)

    assert len(project.records(id=given, event="done")) == 1
    eventually(lambda: left_over(project, broker) == {})


def consumers(project):
    with Connection(project.url) as connection:
        return connection.default_channel.queue_declare(project.queue, passive=True).consumer_count


def children(worker):
    """The processes of its pool."""
    pid = worker.process.pid
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_a_task_that_was_cut_off_by_cold_shutdowns_is_no_crash_loop(project, plans):
    project.conf["dlx_crash_limit"] = 2
    long = plans.send("done", seconds=2.0)

    for shutdowns in (1, 2, 3):
        worker = project.start(concurrency=1, module="project_fire").wait_until_ready()
        eventually(lambda expected=shutdowns: len(project.records(id=long, event="run")) == expected)
        end(worker, signal.SIGQUIT)
    with project.worker(concurrency=1, module="project_fire"):
        eventually(lambda: project.records(id=long, event="done") or project.dead())

    assert [letter.record.reason for letter in project.dead()] == []


def test_with_a_new_process_for_every_task_all_retries_are_published(project, plans):
    for _ in range(4):
        plans.send("done", failures=2, countdown=0.1)
        plans.send("dead", failures=1, countdown=0.1)

    with project.worker("--max-tasks-per-child", "1", module="project_fire"):
        plans.wait()

    plans.assert_ended_as_planned(extra_ends=0)
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
