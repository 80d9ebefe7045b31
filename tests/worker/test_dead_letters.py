"""What cannot be helped ends in the dead-letter queue, with the reason on it; and what Celery ends quietly does not."""

from __future__ import annotations

import pytest
from celery.exceptions import SoftTimeLimitExceeded
from kombu.connection import Connection
from support import eventually, put

from celery_dlx_retry import DeadLetter
from celery_dlx_retry.broker.dead_letters import browse


def test_each_way_to_die_leaves_a_dead_letter_with_its_reason(project):
    ways = {
        "exhausted": (project.send("exhaust"), ValueError, "ValueError: always", 3),
        "failed": (project.send("fail"), ValueError, "ValueError: no luck", 1),
        "requested": (project.send("give_up"), DeadLetter, "DeadLetter: this order is from 1970", 1),
    }
    by_policy = project.send("by_policy")
    soft = project.send("linger")
    with project.worker(concurrency=4):
        for result, error, _, _ in ways.values():
            with pytest.raises(error):
                result.get(timeout=20)
        with pytest.raises(OSError, match="down"):
            by_policy.get(timeout=20)
        with pytest.raises(SoftTimeLimitExceeded):
            soft.get(timeout=20)

    letters = {letter.record.task_id: letter.record for letter in project.dead()}
    assert len(letters) == 5
    for reason, (result, _, error, attempts) in ways.items():
        record = letters[result.id]
        assert (record.reason, f"{record.error_type}: {record.error}") == (reason, error)
        assert record.attempts == attempts
        assert record.queue == record.dead_letter_key == project.queue
        assert record.worker == f"w1.{project.prefix}@h"
        assert "project.py" in record.traceback
    assert letters[by_policy.id].reason == "exhausted"
    assert letters[by_policy.id].attempts == 3
    assert letters[soft.id].reason == "failed"
    assert letters[soft.id].error_type == "SoftTimeLimitExceeded"


def test_a_retry_that_asks_for_too_long_a_wait_is_a_dead_letter(project):
    result = project.send("heal", 1, 2 * 365 * 24 * 3600)
    with project.worker():
        (letter,) = eventually(project.dead)

    assert letter.record.task_id == result.id
    assert letter.record.reason == "failed"
    assert letter.record.error_type == "DelayTooLong"
    assert "dlx_max_delay allows 365 days" in letter.record.error


def test_a_rejected_task_is_a_dead_letter_and_a_requeued_one_is_not(project):
    rejected, requeued = project.send("reject"), project.send("reject", True)  # noqa: FBT003
    with project.worker():
        eventually(lambda: len(project.dead()) == 2)

    assert {letter.record.reason for letter in project.dead()} == {"rejected"}
    assert len(project.records(id=rejected.id)) == 1
    assert len(project.records(id=requeued.id)) == 2
    assert project.depth(project.queue) == 0


def test_what_celery_ends_quietly_is_no_dead_letter(project):
    with project.worker():
        ignored = project.send("ignore")
        expired = project.send("heal", 1, 2.0, expires=1)
        revoked = project.send("heal", 1, 2.0)
        eventually(lambda: len(project.records()) == 3)
        project.app.control.revoke(revoked.id)
        eventually(lambda: (expired.state, revoked.state) == ("REVOKED", "REVOKED"))

    assert len(project.records(id=ignored.id)) == 1
    assert len(project.records(id=expired.id)) == 1
    assert len(project.records(id=revoked.id)) == 1
    assert project.dead() == []
    assert project.depth(project.queue) == 0


def test_a_retry_whose_work_queue_was_deleted_is_kept_with_the_orphans(project):
    with project.worker() as worker:
        result = project.send("heal", 1, 4.0)
        eventually(lambda: project.depth(project.grid_lane(4000)))
        worker.kill()
    with Connection(project.url) as connection:
        connection.default_channel.queue_delete(project.queue)
        orphans = project.names.orphans()
        eventually(lambda: project.depth(orphans))
        (orphan,) = browse(connection, orphans)

    assert orphan.record.task_id == result.id
    assert orphan.record.reason == "unroutable"
    assert orphan.record.queue == project.queue

    with project.worker() as worker:
        assert result.get(timeout=30) == "healed"
    assert project.depth(orphans) == 0
    assert "orphans returned to their work queues count=1" in worker.log


def test_orphans_of_other_work_queues_stay_where_they_are(project):
    with project.worker():
        pass
    orphans = project.names.orphans()
    put(project.url, [1, 2], exchange=project.names.return_exchange(), routing_key=f"{project.prefix}.gone")
    eventually(lambda: project.depth(orphans) == 2)

    with project.worker() as worker:
        assert project.send("heal", 0, 0.1).get(timeout=30) == "healed"

    assert project.depth(orphans) == 2
    assert "orphans returned" not in worker.log


def test_a_dead_letter_is_replayed_by_the_command_line_and_succeeds(project):
    with project.worker():
        result = project.send("by_policy", 3)
        (letter,) = eventually(project.dead)

        listed = project.celery("dlx", "dead", "list", "-q", project.queue)
        replayed = project.celery("dlx", "dead", "replay", "-q", project.queue, "--yes", result.id)
        eventually(lambda: len(project.dead()) == 1 and project.dead()[0].replays == 1)

    assert letter.replays == 0
    assert result.id in listed.stdout
    assert "exhausted" in listed.stdout
    assert replayed.stdout.splitlines() == [f"replayed {result.id} to {project.queue}", "1 replayed"]
    # It had its two retries again, and the history of both lives.
    assert [run["retries"] for run in project.records(id=result.id)] == [0, 1, 2, 0, 1, 2]
    assert len(project.dead()[0].history) == 6
