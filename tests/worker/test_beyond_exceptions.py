"""What is no Exception is a failure like any other, in every pool; who is killed by the pool has not failed."""

from __future__ import annotations

import pytest
from celery.result import AsyncResult
from support import eventually

KINDS = ("cancelled", "generator", "local")


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo", "gevent"])
def test_a_body_that_raises_no_exception_fails_once(project, pool):
    kinds = (*KINDS, "timeout") if pool == "gevent" else KINDS
    errback = project.app.signature("project.errback")
    with project.worker(pool=pool, module="project_beyond") as worker:
        failed = [project.send("beyond", kind, link_error=errback) for kind in kinds]
        if pool == "gevent":
            failed.append(project.send("limited", "timeout", link_error=errback))
        retried = [project.send("beyond_retried", kind, link_error=errback) for kind in kinds]
        hooked = project.send("bad_hook")
        eventually(lambda: len(project.dead()) >= len(failed + retried) + 1)
        eventually(lambda: len(project.records(event="errback")) >= len(failed + retried))
        assert project.send("succeed", 1).get(timeout=10) == 1
        eventually(lambda: {result.state for result in failed + retried} == {"FAILURE"})
        assert worker.process.poll() is None

    reasons = {letter.record.task_id: str(letter.record.reason) for letter in project.dead()}
    assert reasons == {result.id: "failed" for result in (*failed, hooked)} | {
        result.id: "exhausted" for result in retried
    }
    assert len(project.dead()) == len(reasons)
    for result in failed + retried:
        assert len(project.records(id=result.id, event="run")) == (2 if result in retried else 1)
        assert len(project.records(failed=result.id, event="errback")) == 1
        assert len(project.records(failed=result.id, event="signal")) == 1
    assert project.depth(project.queue) == 0


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo"])
def test_a_failure_that_cannot_be_stored_is_one_dead_letter_and_nothing_else(project, pool):
    with project.worker(pool=pool, module="project_beyond") as worker:
        result = project.send("unstored")
        eventually(lambda: "after the hand-over" in worker.log)
        assert project.send("succeed", 1).get(timeout=10) == 1
        assert worker.process.poll() is None

    assert [(letter.record.task_id, letter.record.reason) for letter in project.dead()] == [(result.id, "failed")]
    assert len(project.records(id=result.id, event="run")) == 1
    assert project.depth(project.queue) == 0


def test_a_greenlet_that_is_revoked_is_killed_and_no_dead_letter(project):
    with project.worker(pool="gevent", module="project_beyond"):
        result = project.send("endless")
        eventually(lambda: project.records(id=result.id))
        AsyncResult(result.id, app=project.app).revoke(terminate=True)

        eventually(lambda: result.state == "REVOKED")
        assert project.send("succeed", 1).get(timeout=10) == 1

    assert project.dead() == []
    assert project.depth(project.queue) == 0
