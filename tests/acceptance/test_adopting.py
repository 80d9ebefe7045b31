"""What docs/adopt.md, docs/quorum.md and docs/no-declare.md tell operators to do, done."""

from __future__ import annotations

import re

from celery import Celery
from kombu.connection import Connection
from support import eventually

from celery_dlx_retry import DLXRetryTask, dlx_queue


def ran(project, message, **wanted):
    return project.records(id=message.id, **wanted)


def test_after_a_rollback_plain_workers_go_on_with_what_waited_in_the_broker(project):
    sender = Celery("sender", config_source=dict(project.conf), set_as_current=False)

    @sender.task(name="project.heal", base=DLXRetryTask)
    def heal(failures):
        pass

    with project.worker():
        retried = project.send("heal", 3, 2)
        countdown = heal.apply_async((0,), countdown=3)
        dead = project.send("fail")
        eventually(lambda: ran(project, retried) and project.dead())

    with project.worker(module="project_plain", pool="solo") as plain:
        # The fourth attempt is Celery's own third retry: it goes on where we stopped.
        eventually(lambda: ran(project, retried, retries=3, plain=True), within=40)
        eventually(lambda: ran(project, countdown, retries=0, plain=True))
        replayed = project.celery("-A", "project_plain", "dlx", "dead", "replay", "--all", "--yes")
        eventually(lambda: ran(project, dead, plain=True))

    assert [row["retries"] for row in ran(project, retried)] == [0, 1, 2, 3]
    assert "1 replayed" in replayed.stdout
    assert "Traceback" not in plain.log
    sender.close()


def test_without_the_return_exchange_celery_loses_the_retry_of_what_came_back_from_a_lane(project):
    with project.worker():
        message = project.send("heal", 9, 1)
        eventually(lambda: ran(project, message))
    with Connection(project.url) as connection, project.worker(module="project_plain", pool="solo") as plain:
        eventually(lambda: plain.log.count("retry: Retry in 1s") == 1)  # it came back, and now Celery holds it

        connection.default_channel.exchange_delete(project.names.return_exchange())

        eventually(lambda: plain.log.count("retry: Retry in 1s") == 2)  # and holds nothing: the broker dropped it
        later = project.send("heal", 0, countdown=2)
        eventually(lambda: ran(project, later))

    assert not ran(project, message, retries=3)


def test_a_full_work_queue_is_moved_to_quorum_while_workers_run(project):
    moved = f"{project.prefix}.moved"
    old = [project.send("heal", 1, 2) for _ in range(20)]
    with project.worker():
        eventually(lambda: project.records(retries=0))  # some wait in a lane for the old queue, some lie in it

    sender = Celery("sender", config_source=dict(project.conf), set_as_current=False)
    sender.conf.task_queues = [dlx_queue(moved, queue_type="quorum", prefix=project.prefix)]
    sender.conf.task_default_queue = moved
    with project.worker(module="project_moved"):
        new = [project.send("heal", 1, 0.2, app=sender) for _ in range(5)]
        eventually(lambda: len({row["id"] for row in project.records(retries=1)}) == len(old) + len(new), within=60)
        overlooked = project.send("heal", 1, 6)  # by a sender that was not told
        eventually(lambda: ran(project, overlooked))
    with Connection(project.url) as connection:
        connection.default_channel.queue_delete(project.queue, if_empty=True, if_unused=True)
    eventually(lambda: project.depth(project.names.orphans()) == 1)
    where = ("-q", project.names.orphans(), "--to-queue", moved)
    replayed = project.celery("-A", "project_moved", "dlx", "dead", "replay", *where, "--yes")

    assert "1 replayed" in replayed.stdout, replayed
    for messages, queue in ((old, project.queue), (new, moved)):
        assert {row["queue"] for message in messages for row in ran(project, message, retries=1)} == {queue}
    assert project.dead() == project.dead(moved) == []
    eventually(lambda: project.depth(moved) == 1)
    sender.close()


def test_where_apps_may_not_declare_a_coarse_grid_that_is_announced_has_a_lane_for_every_wait(project):
    declared = project.celery("-A", "project_announced", "dlx", "declare")

    with project.worker(module="project_announced") as worker:
        message = project.send("heal", 3, [0.05, 0.37, 1.3])
        eventually(lambda: ran(project, message, retries=3))

    assert declared.returncode == 0, declared.stderr
    assert [int(found) for found in re.findall(r"delay_ms=(\d+)", worker.log)] == [100, 400, 1600]
