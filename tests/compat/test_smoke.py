"""What has to hold with every Python, Celery, RabbitMQ and pool."""

from __future__ import annotations

import json
from datetime import datetime
from itertools import pairwise

import pytest

from celery_dlx_retry.settings import Settings
from celery_dlx_retry.topology.ladder import Ladder
from tests.compat.conftest import HAS_HARD_LIMITS


def test_a_retry_waits_in_a_lane_and_is_not_early(scene):
    runs = scene.runs("heal")

    assert [run["retries"] for run in runs] == [0, 1, 2], scene.log
    assert all(after["at"] - before["at"] >= 0.3 for before, after in pairwise(runs))
    assert scene.result("heal") == "healed"
    assert scene.project.depth(scene.project.lane(300)) == 0


def test_a_countdown_waits_in_the_ladder_and_is_not_early(scene):
    (run,) = scene.project.records(task="later.note")

    assert run["id"] == scene.result("countdown")
    assert run["at"] >= datetime.fromisoformat(run["eta"]).timestamp()
    ladder = Ladder.of(Settings())
    assert scene.project.depth(scene.project.names.rung(ladder.resolution_ms, 0)) == 0


def test_what_is_exhausted_is_a_dead_letter_with_its_history(scene):
    if scene.replayed:  # its worker has seen it succeed at last
        (row,) = [row for row in rows_of(scene.listed) if row["task_id"] == scene.sent["exhaust"].id]
        reason, delays = row["reason"], [failure["delay_ms"] for failure in row["history"]]
    else:
        letter = scene.letter("exhaust")
        reason, delays = letter.record.reason, [failure.delay_ms for failure in letter.history]

    assert reason == "exhausted"
    assert delays == [100, 100, None]


def test_an_errback_is_called_once(scene):
    assert [note["args"] for note in scene.project.records(event="errback")] == [[scene.sent["exhaust"].id]]


@pytest.mark.parametrize("scene", HAS_HARD_LIMITS, indirect=True)
def test_a_hard_time_limit_is_a_dead_letter_or_a_retry_as_the_policy_says(scene):
    letter = scene.letter("overrun")

    assert (letter.record.reason, letter.record.error_type) == ("timeout", "TimeLimitExceeded")
    assert scene.sent["overrun"].state == "FAILURE"
    assert [run["retries"] for run in scene.runs("overrun_once")] == [0, 1]
    assert scene.result("overrun_once") == "in time"


@pytest.mark.parametrize("scene", ["prefork"], indirect=True)
def test_a_task_that_takes_its_process_down_comes_back_later(scene):
    first, second = scene.runs("crash")

    assert second["at"] - first["at"] >= 1.0
    assert scene.result("crash") == "alive"


@pytest.mark.parametrize("scene", ["prefork"], indirect=True)
def test_dead_letters_are_listed_and_replayed(scene):
    assert {row["reason"] for row in rows_of(scene.listed)} == {"exhausted", "timeout"}
    assert scene.replayed.returncode == 0, scene.replayed.stderr
    assert scene.result("exhaust") == "repaired"


def test_a_task_whose_worker_is_killed_runs_again(scene):
    assert [run["again"] for run in scene.runs("hold")] == [False, True], scene.log
    assert scene.result("hold") == "done by another"


def test_a_warm_shutdown_leaves_nothing_behind(scene):
    left = {"overrun"} if scene.pool in HAS_HARD_LIMITS else set()
    left |= set() if scene.replayed else {"exhaust"}

    assert scene.ended == 0, scene.log
    assert scene.project.depth(scene.project.queue) == 0
    assert {letter.record.task_id for letter in scene.project.dead()} == {scene.sent[name].id for name in left}
    assert scene.project.depth(scene.project.names.orphans()) == 0


def rows_of(listed):
    assert listed.returncode == 0, listed.stderr
    return [json.loads(line) for line in listed.stdout.splitlines()]
