"""Retries that a pool process writes and the main process publishes: no slot waits for a confirm, and none is lost."""

from __future__ import annotations

import json
import re

import pytest
from kombu.connection import Connection
from support import eventually


@pytest.mark.parametrize("pool", ["prefork", "solo"])
def test_a_retry_goes_out_from_the_main_process(project, pool):
    with project.worker(pool=pool, module="project_forward") as worker:
        results = [project.send("announced") for _ in range(20)]

        assert {result.get(timeout=30) for result in results} == {"healed"}
        assert worker.log.count("INFO/MainProcess] retry scheduled") == 20

    assert len(project.records(event="run")) == 40
    assert project.dead() == []


def test_a_solo_body_longer_than_the_confirm_timeout_doubles_no_task(project):
    with project.worker("--dlx-confirm-timeout", "0.3", pool="solo", module="project_forward") as worker:
        results = [project.send("work_long", 0.7) for _ in range(5)]

        assert [result.get(timeout=60) for result in results] == [None] * 5

    assert sorted(run["retries"] for run in project.records(event="run")) == [0] * 5 + [1] * 5
    assert "not handed over" not in worker.log


@pytest.mark.parametrize("pool", ["prefork", "solo", "threads", "gevent"])
@pytest.mark.parametrize("then", ["return", "fail"])
def test_a_body_that_swallows_its_retry_is_retried_all_the_same(project, pool, then):
    with project.worker(pool=pool, module="project_forward"):
        result = project.send("announced", then)

        eventually(lambda: len(project.records(id=result.id)) == 2)
        # Asked anew each time: a result that has failed once is not looked at again.
        eventually(lambda: project.app.AsyncResult(result.id).state == "SUCCESS")

    first, second = project.records(id=result.id)
    assert second["at"] - first["at"] >= 0.3
    assert project.dead() == []


def test_a_process_that_dies_with_its_retry_written_leaves_one_message(project):
    with project.worker(module="project_forward"):
        result = project.send("announced", "die")

        assert result.get(timeout=30) == "healed"

    assert [run["retries"] for run in project.records(id=result.id)] == [0, 1]


def test_a_lane_that_vanished_is_made_again_and_what_was_on_its_way_arrives(project):
    with project.worker(module="project_forward") as worker:
        assert project.send("announced").get(timeout=30) == "healed"
        with Connection(project.url) as connection:
            connection.default_channel.exchange_delete(project.names.lanes())

        results = [project.send("announced") for _ in range(5)]
        assert {result.get(timeout=60) for result in results} == {"healed"}

        with Connection(project.url) as connection:
            connection.default_channel.queue_delete(project.lane(300))
        assert project.send("announced").get(timeout=60) == "healed"

    assert project.dead() == []
    assert "Traceback" not in worker.log


def limit_lives(project, broker):
    """Let a quorum work queue drop a message at its third counted return, on brokers that do not count each one."""
    project.conf["task_default_queue_type"] = "quorum"
    if int(broker.version.partition(".")[0]) >= 4:
        pattern = f"^{re.escape(project.queue)}$"
        attached = {"dead-letter-exchange": project.names.dead(), "dead-letter-routing-key": project.queue}
        definition = json.dumps({"delivery-limit": 2, **attached})
        broker.ctl("set_policy", project.prefix, pattern, definition, "--apply-to", "queues")


def test_a_task_that_is_given_back_again_and_again_loses_no_life(project, broker):
    """RabbitMQ 4 counts what is rejected and drops it at the delivery limit; 3.x has no limit unless one is set.

    4.0 counts whatever is given back, in any way: there a queue needs a dead-letter exchange, as `dlx policy` gives it.
    """
    limit_lives(project, broker)
    with project.worker():
        pass  # declares what the next one only checks
    with project.worker("--dlx-check-only"):
        result = project.send("heal", 1, 1.5)

        is_counted = broker.version.startswith("4.0.")
        eventually(lambda: project.dead() if is_counted else len(project.records(id=result.id)) >= 5, within=60)

    reasons = [letter.record.reason for letter in project.dead()]
    assert (reasons, project.depth(project.queue)) == ((["crash-loop"], 0) if is_counted else ([], 1))


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_task_that_an_open_breaker_cannot_park_loses_no_life(project, broker, tmp_path, pool):
    limit_lives(project, broker)
    outage = tmp_path / "down"
    outage.touch()
    with project.worker(module="project_limits"):
        pass  # declares what the next one only checks
    with project.worker("--dlx-check-only", module="project_limits", pool=pool, concurrency=1) as worker:
        opener = project.app.send_task("limits.stuck", (str(outage),))
        eventually(project.dead)
        with Connection(project.url) as connection:
            connection.default_channel.queue_delete(project.lane(63_000))

        result = project.app.send_task("limits.stuck")
        is_counted = broker.version.startswith("4.0.")
        not_parked = f"not handed over task=limits.stuck id={result.id}"
        eventually(lambda: len(project.dead()) > 1 if is_counted else worker.log.count(not_parked) >= 5, within=60)

    reasons = {letter.record.task_id: letter.record.reason for letter in project.dead()}
    assert reasons.pop(opener.id) == "failed"
    assert (list(reasons.values()), project.depth(project.queue)) == ((["crash-loop"], 0) if is_counted else ([], 1))
    assert project.records(id=result.id) == []


def test_an_exclusive_queue_has_retries_and_dead_letters(project):
    mine = f"{project.prefix}.mine"
    with project.worker(module="project_forward"):
        for countdown in (0.3, 0.45):  # announced, and not
            result = project.send("heal", 1, countdown, exchange=mine, routing_key=mine)

            assert result.get(timeout=30) == "healed"
        project.send("fail", exchange=mine, routing_key=mine)
        (letter,) = eventually(lambda: project.dead(mine))

    assert letter.record.reason == "failed"


def test_hard_time_limits_that_need_new_lanes_do_not_stop_the_event_loop(project):
    with project.worker(module="project_forward", concurrency=4) as worker:
        for _ in range(4):
            project.send("overrun_at_random")

        eventually(lambda: worker.log.count("retry scheduled") >= 4, within=60)

    assert [pause for pause in project.records(event="stood still") if pause["seconds"] > 1.9] == []
    assert project.dead() == []
