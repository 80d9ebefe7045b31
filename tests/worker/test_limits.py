"""Budgets and breakers: a dead dependency gets a trickle, not a storm, and nothing is lost on the way."""

from __future__ import annotations

import time
from collections import Counter
from datetime import datetime

import pytest
from celery import Celery, chain
from kombu.connection import Connection
from support import eventually, put

from celery_dlx_retry import DLXRetryTask
from celery_dlx_retry.broker.waiting import waiting as who_waits
from tests.worker.stage import listening, stage

MOST_WAITING = 12


@pytest.fixture(scope="module")
def project(request):
    # A classic lane holds exactly so many; a quorum lane counts late.
    with stage(request, dlx_queue_type="classic", dlx_max_waiting=MOST_WAITING, task_track_started=True) as it:
        # One process: each has its own accounts and circuits.
        it.conf["event_exchange"] = f"{it.prefix}.events"
        it.worker_at_work = it.start("-E", module="project_limits", concurrency=1).wait_until_ready()
        yield it


@pytest.fixture(scope="module")
def send(project):
    def send(name, *args, **options):
        return project.app.send_task(f"limits.{name}", args, **options)

    return send


@pytest.fixture(scope="module")
def fill(project):
    """Fill a lane with messages that are no tasks."""

    def fill(delay_ms):
        missing = range(waiting(project, delay_ms), MOST_WAITING)
        put(project.url, missing, exchange=project.names.lanes(), routing_key=project.lane(delay_ms))

    return fill


@pytest.fixture
def outage(tmp_path):
    """A file: as long as it is there, what needs it fails."""
    file = tmp_path / "down"
    file.touch()
    return file


def letters_of(project, results):
    ids = {result.id for result in results}
    return eventually(
        lambda: len(found := [it for it in project.dead() if it.record.task_id in ids]) == len(ids) and found
    )


def delays(letter):
    return [failure.delay_ms for failure in letter.history]


def waiting(project, delay_ms):
    return project.depth(project.lane(delay_ms))


@pytest.mark.parametrize("way", ["policy", "asks", "soft", "unsent", "goes_on", "auto"])
def test_a_retry_beyond_the_budget_is_a_dead_letter_with_retries_left(project, send, way):
    (letter,) = letters_of(project, [result := send(way)])

    assert (letter.record.reason, letter.record.attempts) == ("budget", 3)
    assert delays(letter)[2] is None
    # A run that goes on after its retry succeeds, and Celery's backends do not take that back.
    eventually(lambda: result.state == ("SUCCESS" if way == "goes_on" else "FAILURE"))
    assert len(project.records(id=result.id)) == 3


def test_a_retry_beyond_the_budget_waits_longer_if_that_is_what_it_says(project, send):
    (letter,) = letters_of(project, [send("later")])

    assert (letter.record.reason, delays(letter)) == ("exhausted", [100, 700, None])


def test_a_retry_that_would_wait_past_its_deadline_is_dead_of_the_budget(project, send):
    (letter,) = letters_of(project, [send("too_late")])

    assert (letter.record.reason, delays(letter)) == ("budget", [100, None])


def test_of_many_first_attempts_their_share_is_retried(project, send):
    letters = letters_of(project, [send("half") for _ in range(20)])

    assert Counter(letter.record.reason for letter in letters) == {"exhausted": 10, "budget": 10}


def test_tasks_without_a_budget_of_their_own_share_that_of_the_app(project, send):
    letters = letters_of(project, [send("shared_a"), send("shared_b")])

    assert {letter.record.reason for letter in letters} == {"budget"}
    assert sum(letter.record.attempts - 1 for letter in letters) == 2


def test_what_a_full_lane_refuses_is_beyond_the_budget(project, send, fill):
    fill(60_000)

    (letter,) = letters_of(project, [result := send("crowd")])

    assert (letter.record.reason, delays(letter)) == ("budget", [None])
    eventually(lambda: result.state == "FAILURE")
    assert len(project.records(id=result.id)) == 1


def test_what_a_full_lane_refuses_waits_longer_if_the_budget_says_so_and_that_lane_has_room(project, send, fill):
    fill(61_000)

    send("queue_up")
    eventually(lambda: waiting(project, 62_000) == 1)
    fill(62_000)
    (letter,) = letters_of(project, [send("queue_up")])

    assert (letter.record.reason, delays(letter)) == ("budget", [None])


def test_a_countdown_is_no_retry_and_not_refused_where_they_are(project, fill):
    web = project._apps["web"] = Celery("web", config_source=project.conf, set_as_current=False)

    @web.task(name="limits.crowd", base=DLXRetryTask, shared=False, policy=60)
    def crowd(): ...

    fill(60_000)

    result = crowd.apply_async(countdown=60)

    assert result.state == "PENDING"
    assert waiting(project, 60_000) == MOST_WAITING


def test_what_is_to_be_parked_in_a_full_lane_stays_on_its_queue(project, send, outage, fill):
    fill(63_000)
    letters_of(project, [send("stuck", str(outage))])

    result = send("stuck")
    eventually(lambda: project.worker_at_work.log.count(f"not handed over task=limits.stuck id={result.id}") == 2)
    project.app.control.revoke(result.id)

    eventually(lambda: result.state == "REVOKED")
    assert project.records(id=result.id) == []


def test_an_open_breaker_lets_one_probe_through_per_interval_and_the_flow_returns(project, send, outage):
    worker = project.worker_at_work
    results = [send("opens", str(outage), number) for number in range(8)]
    ids = {result.id for result in results}

    def runs():
        return [row for row in project.records(task="limits.opens") if row["id"] in ids]

    eventually(lambda: len(runs()) >= 6)
    last_before_it_opened, third_probe = runs()[2], runs()[5]
    assert third_probe["at"] - last_before_it_opened["at"] >= 3 * 0.4 - 0.1
    outage.unlink()

    assert [result.get(timeout=20) for result in results] == list(range(8))
    eventually(lambda: send("opens").get(timeout=5) and "breaker closed task=limits.opens" in worker.log)
    assert "breaker open task=limits.opens probe_every_ms=400" in worker.log
    assert "breaker half open task=limits.opens per_interval=2" in worker.log
    # Parked is not tried: each has been retried as often as it has failed.
    assert {row["id"]: row["retries"] + 1 for row in runs()} == Counter(row["id"] for row in runs())


def test_what_is_parked_keeps_all_that_celery_means_by_it(project, send, outage):
    send("keeps", str(outage))  # opens it
    eventually(lambda: "breaker open task=limits.keeps" in project.worker_at_work.log)
    linked = chain(
        project.app.signature("limits.keeps", ("",), {"result": 21}), project.app.signature("project.succeed")
    ).apply_async()
    expired, revoked = send("keeps", expires=0.9), send("keeps")

    eventually(lambda: waiting(project, 1_200) == 3)
    assert {result.state for result in (linked.parent, expired, revoked)} == {"PENDING"}
    revoked.revoke()

    assert linked.get(timeout=20) == 21
    eventually(lambda: (expired.state, revoked.state) == ("REVOKED", "REVOKED"))
    for result in (linked.parent, expired, revoked):
        assert result.id not in {letter.record.task_id for letter in project.dead()}
    assert [len(project.records(id=result.id)) for result in (linked.parent, expired, revoked)] == [1, 0, 0]


def test_monitors_see_that_a_parked_task_waits_and_until_when(project, send, outage):
    project.app.conf.event_exchange = project.conf["event_exchange"]
    state = project.app.events.State()
    with listening(project.app, events := []):
        send("shown", str(outage))  # opens its breaker
        eventually(lambda: "breaker open task=limits.shown" in project.worker_at_work.log)
        parked = send("shown", str(outage))
        eventually(lambda: [it for it in events if it.get("uuid") == parked.id and it["type"] == "task-retried"])

    for event in events:
        state.event(event)
    task = state.tasks[parked.id]
    assert (task.state, task.exception) == ("RETRY", "Parked()")
    assert datetime.fromisoformat(task.eta).timestamp() - task.timestamp == pytest.approx(66, abs=5)


def test_without_a_policy_every_error_is_a_failure_to_the_breaker(project, send, outage):
    letters_of(project, [send("strict", str(outage)), send("strict", str(outage))])

    parked = send("strict", str(outage))

    eventually(lambda: waiting(project, 64_000) == 1)
    assert project.records(id=parked.id) == []
    with Connection(project.url) as connection:
        (told,) = who_waits(connection, project.names.lane_of(project.lane(64_000)))
    assert (told.task_id, told.parked) == (parked.id, True)
    assert 0 < told.due_ms - time.time() * 1000 <= 64_000


@pytest.mark.parametrize("why", ["gives up", "is let fail", "is dead by policy"])
def test_what_is_wrong_with_a_message_does_not_open_the_breaker(project, send, why):
    results = [send("blameless", why) for _ in range(3)]

    eventually(lambda: {result.state for result in results} == {"FAILURE"})
    assert all(project.records(id=result.id) for result in results)


def test_a_hard_time_limit_beyond_the_budget_is_a_dead_letter(project, send):
    # The last one here: it ends the only pool process, and Celery takes seconds to replace it.
    (letter,) = letters_of(project, [result := send("overruns")])

    assert (letter.record.reason, delays(letter)) == ("budget", [100, None])
    assert letter.record.error_type == "TimeLimitExceeded"
    assert len(project.records(id=result.id)) == 2
