"""A sender may have RabbitMQ copy a message into more queues, by CC and BCC. Each copy is one task, and stays one."""

from __future__ import annotations

from collections import Counter

import pytest
from support import eventually

from tests.worker.stage import stage


@pytest.fixture(scope="module")
def project(request):
    with stage(request, dlx_crash_limit=3) as it:
        it.queues = [f"{it.queue}.{name}" for name in ("first", "by-cc", "by-bcc")]
        it.start("-Q", ",".join(it.queues), module="project_copies", concurrency=3).wait_until_ready()
        yield it


def send(project, name, **options):
    first, by_cc, by_bcc = project.queues
    copies = {"CC": [by_cc], "BCC": [by_bcc]}
    return project.app.send_task(f"copies.{name}", queue=first, headers=copies, **options)


def dead(project, result):
    """The dead letters of a task by their work queues."""
    letters = [letter for queue in project.queues for letter in project.dead(queue)]
    return Counter(letter.record.queue for letter in letters if letter.record.task_id == result.id)


def runs(project, result):
    return Counter(run["queue"] for run in project.records(id=result.id))


@pytest.mark.parametrize(
    ("task", "attempts"), [("by_policy", 3), ("by_retry", 3), ("fail", 1), ("die", 3), ("overrun", 3)]
)
def test_each_copy_of_a_message_is_tried_as_often_as_one_and_is_one_dead_letter(project, task, attempts):
    result = send(project, task)

    eventually(lambda: dead(project, result).keys() >= set(project.queues), within=40)

    assert dead(project, result) == dict.fromkeys(project.queues, 1)
    assert runs(project, result) == dict.fromkeys(project.queues, attempts)


@pytest.mark.parametrize("name", ["CC", "BCC"])
def test_a_retry_that_asks_for_copies_itself_is_one_message(project, name):
    first, other, _ = project.queues
    result = project.app.send_task("copies.by_retry", kwargs={"headers": {name: [other]}}, queue=first)

    eventually(lambda: dead(project, result))

    assert dead(project, result) == {first: 1}
    assert runs(project, result) == {first: 3}


def test_a_countdown_with_copies_waits_once_for_each_queue(project):
    result = send(project, "fail", countdown=0.6)

    eventually(lambda: dead(project, result).keys() >= set(project.queues))

    assert dead(project, result) == dict.fromkeys(project.queues, 1)
    assert runs(project, result) == dict.fromkeys(project.queues, 1)
