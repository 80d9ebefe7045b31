"""What only the worker's main process sees: hard time limits, pool processes that are gone, results that cannot be."""

from __future__ import annotations

import pytest
from celery.exceptions import TimeLimitExceeded, WorkerLostError
from support import eventually


def test_a_hard_time_limit_is_a_dead_letter(project):
    with project.worker():
        result = project.send("overrun")
        with pytest.raises(TimeLimitExceeded):
            result.get(timeout=20)

        (letter,) = eventually(project.dead)
        assert project.send("succeed", 1).get(timeout=10) == 1

    assert letter.record.reason == "timeout"
    assert letter.record.task_id == result.id
    assert letter.record.error_type == "TimeLimitExceeded"
    assert len(project.records(id=result.id)) == 1


def test_a_hard_time_limit_is_a_dead_letter_in_a_pool_of_gevent_too(project):
    with project.worker(pool="gevent"):
        result = project.send("overrun")
        (letter,) = eventually(project.dead)
        assert project.send("succeed", 1).get(timeout=10) == 1
        assert result.state == "FAILURE"

    assert letter.record.reason == "timeout"
    assert letter.record.task_id == result.id
    assert len(project.records(id=result.id)) == 1
    assert project.depth(project.queue) == 0


def test_a_hard_time_limit_is_retried_where_the_policy_says_so(project):
    with project.worker():
        result = project.send("overrun_once")

        assert result.get(timeout=20) == "in time"

    first, second = project.records(id=result.id)
    assert (first["retries"], second["retries"]) == (0, 1)
    assert second["at"] - first["at"] >= 1.3
    assert project.dead() == []


@pytest.mark.parametrize("how", ["kill", "segv", "exit"])
def test_a_task_that_takes_its_process_down_comes_back_later(project, how):
    with project.worker():
        result = project.send("crash", 1, how)

        assert result.get(timeout=30) == "alive"

    first, second = project.records(id=result.id)
    assert second["at"] - first["at"] >= 1.0


def test_bodies_that_exit_at_once_in_a_pool_of_threads_are_each_retried_under_their_own_id(project):
    with project.worker(module="project_switching", pool="threads", concurrency=16) as worker:
        ids = {project.send("crash", 1, "exit").id for _ in range(50)}

        eventually(lambda: len(project.records(retries=1)) >= len(ids), within=60)

    runs = [(run["id"], run["retries"]) for run in project.records()]
    assert sorted(runs) == sorted((it, retries) for it in ids for retries in (0, 1))
    assert "not handed over" not in worker.log


def test_a_task_that_always_takes_its_process_down_ends_as_a_dead_letter(project):
    project.conf["dlx_crash_limit"] = 2
    with project.worker():
        result = project.send("crash")
        with pytest.raises(WorkerLostError):
            result.get(timeout=40)

        (letter,) = eventually(project.dead)

    assert letter.record.reason == "worker-lost"
    assert [run["retries"] for run in project.records(id=result.id)] == [0, 1]
    assert [failure.delay_ms for failure in letter.history] == [1000, None]


def test_a_reused_id_with_an_older_success_is_run_again_when_its_process_is_killed(project):
    reused = f"reused-{project.prefix}"
    with project.worker():
        assert project.send("crash", 0, task_id=reused).get(timeout=20) == "alive"

        project.send("crash", 1, task_id=reused)

        eventually(lambda: len(project.records(id=reused)) == 3, within=30)

    assert [run["retries"] for run in project.records(id=reused)] == [0, 0, 1]
    assert project.dead() == []


def test_a_reused_id_with_an_older_success_is_a_dead_letter_and_its_errback_is_called(project):
    reused = f"reused-{project.prefix}"
    project.conf["dlx_crash_limit"] = 1
    with project.worker() as worker:
        assert project.send("crash", 0, task_id=reused).get(timeout=20) == "alive"

        errback = project.app.signature("project.succeed", immutable=True, task_id=f"errback-{project.prefix}")
        project.send("crash", task_id=reused, link_error=errback)

        eventually(lambda: project.records(id=f"errback-{project.prefix}"), within=30)

    assert [letter.record.reason for letter in project.dead()] == ["worker-lost"]
    assert "succeeded before the worker was lost" not in worker.log


def test_a_result_that_cannot_be_encoded_is_a_failure_that_is_kept(project):
    with project.worker():
        result = project.send("unencodable")
        (letter,) = eventually(project.dead)

    assert letter.record.reason == "failed"
    assert letter.record.task_id == result.id
    assert result.state == "FAILURE"


def test_messages_of_protocol_1_are_not_retried_from_here_and_keep_their_reason(project):
    project.app.conf.task_protocol = 1
    with project.worker():
        results = {"worker-lost": project.send("crash"), "timeout": project.send("overrun_once")}
        eventually(lambda: len(project.dead()) == 2)

    # Such a message has its id in its body.
    assert {str(letter.record.reason): letter.record.task_id for letter in project.dead()} == {
        reason: result.id for reason, result in results.items()
    }
    assert len(project.records()) == 2
