"""Every signal comes from a real run with its event: in a worker, also for messages without a task, and in commands."""

from __future__ import annotations

import subprocess

import pytest
from kombu.connection import Connection
from support import eventually

from tests.workers import celery

POOLS = ["prefork", "solo", "threads"]


def seen(project, signal, **wanted):
    return [it for it in project.records(signal=signal, **wanted) if it["frozen"]]


def dlx(project, *words):
    done = subprocess.run(
        celery("project_signals", "dlx", *words),
        env=project.environment(), capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("pool", POOLS)
def test_a_worker_sends_each_signal_with_its_frozen_event(project, pool):
    with project.worker(module="project_signals", pool=pool, concurrency=1):
        flaky = project.app.send_task("metrics.flaky", (1,))
        dead = project.app.send_task("metrics.rejected")
        later = project.app.send_task("metrics.flaky", (0,), countdown=1)
        project.app.send_task("metrics.unknown")
        with Connection(project.url) as connection:
            producer = connection.Producer()
            broken = {"content_type": "application/json", "content_encoding": "utf-8"}
            producer.publish(b"\xff", routing_key=project.queue, **broken)
            producer.publish({"no": "task"}, routing_key=project.queue, serializer="json")
        assert flaky.get(timeout=20) is None
        assert later.get(timeout=20) is None
        for fails in (True, False, False, False):
            project.app.send_task("metrics.trips", (fails,))

        def is_closed():  # a breaker changes with the next message
            project.app.send_task("metrics.trips", (False,))
            return seen(project, "breaker_changed", state="closed")

        eventually(is_closed, within=30)
        eventually(lambda: len(project.dead()) == 5)
        assert project.app.send_task("metrics.spends", (1,)).get(timeout=20) is None

    assert seen(project, "retry_scheduled", sender="metrics.flaky", task_id=flaky.id, event="RetryScheduled")
    assert seen(project, "recovered", sender="metrics.flaky", task_id=flaky.id, event="Recovered")
    assert seen(project, "countdown_scheduled", sender="metrics.flaky", task_id=later.id, event="CountdownScheduled")
    assert seen(project, "dead_lettered", task_id=dead.id, reason="rejected", event="DeadLettered")
    strays = {(it["sender"], it["reason"]) for it in seen(project, "dead_lettered") if it["task_id"] != dead.id}
    assert strays >= {("metrics.unknown", "unknown-task"), ("", "invalid"), ("", "undecodable")}
    assert seen(project, "parked", sender="metrics.trips", event="Parked")
    assert seen(project, "breaker_changed", sender="metrics.trips", event="BreakerChanged", state="open")
    assert seen(project, "budget_changed", sender="metrics.spends", event="BudgetChanged")
    assert all(it["frozen"] for it in project.records())


def test_a_delivery_that_is_given_back_is_a_signal_also_without_a_task(project, broker, prefix):
    project.conf["dlx_queue_type"] = "classic"  # whose limit is exact
    pattern = f"^{project.names.dead_letters(project.queue)}$"
    full = '{"max-length": 0, "overflow": "reject-publish"}'
    broker.ctl("set_policy", prefix, pattern, full, "--apply-to", "queues")
    try:
        with project.worker(module="project_signals"):
            project.app.send_task("metrics.rejected")
            eventually(lambda: seen(project, "given_back", sender="metrics.rejected", event="GivenBack"))
            project.app.send_task("metrics.unknown")
            eventually(lambda: seen(project, "given_back", sender="", event="GivenBack"))
    finally:
        broker.ctl("clear_policy", prefix)


def test_commands_send_signals_in_their_own_process(project, tmp_path):
    export = str(tmp_path / "letters.jsonl")
    with project.worker(module="project_signals", concurrency=1):
        first = project.app.send_task("metrics.many", (1,))
        eventually(lambda: len(project.dead()) == 1)
        waiting = project.app.send_task("metrics.flaky", (0,), countdown=600)
        eventually(lambda: dlx(project, "waiting", "list", "--json").count(waiting.id))

    dlx(project, "dead", "edit", first.id, "--set", "number=2", "--yes")
    dlx(project, "dead", "export", "--output", export)
    dlx(project, "waiting", "cancel", waiting.id, "--yes")
    dlx(project, "dead", "purge", "--all", "--yes")
    dlx(project, "dead", "import", export, "--yes")
    dlx(project, "dead", "replay", first.id, "--yes")

    assert [it["task_id"] for it in seen(project, "edited", sender="metrics.many", event="Edited")] == [first.id]
    assert seen(project, "dead_lettered", task_id=waiting.id, reason="requested", event="DeadLettered")
    assert [it["count"] for it in seen(project, "purged", sender="", event="Purged")] == ["2"]
    assert [it["task_id"] for it in seen(project, "imported", event="Imported")] == [first.id]
    assert [it["task_id"] for it in seen(project, "replayed", event="Replayed")] == [first.id]
