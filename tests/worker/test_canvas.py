"""What a task belongs to and carries along survives its retries: chains, groups, chords, stamps, limits, addresses."""

from __future__ import annotations

import time
from datetime import datetime, timedelta, timezone

import pytest
from celery import chain, chord, group
from celery.exceptions import ChordError, TaskRevokedError
from support import eventually

from tests.worker.stage import stage


@pytest.fixture(scope="module")
def project(request):
    with stage(request) as it:
        it.conf["dlx_crash_limit"] = 1
        it.start(module="project_canvas", concurrency=3).wait_until_ready()
        yield it


@pytest.fixture(scope="module")
def task(project):
    """Signatures of project_canvas."""

    def task(name, *args, **kwargs):
        return project.app.signature(f"canvas.{name}", args=args, kwargs=kwargs, app=project.app)

    return task


def retries(project, task_id):
    return [run["retries"] for run in project.records(id=task_id, event="run")]


def test_a_chain_goes_on_after_a_retry_in_its_middle(project, task):
    result = chain(task("add", 1, 2), task("add", 10, failures=2), task("add", 100), app=project.app).apply_async()

    assert result.get(timeout=20) == 113
    assert retries(project, result.parent.id) == [0, 1, 2]
    assert retries(project, result.id) == [0]


def test_a_chain_ends_where_a_member_dies(project, task):
    result = chain(task("ours.die"), task("add", 1), app=project.app).apply_async()

    with pytest.raises(ValueError, match="dead"):
        result.get(timeout=20)
    assert retries(project, result.id) == []


def test_a_group_has_all_its_results(project, task):
    result = group([task("add", number, 0, failures=number) for number in range(3)], app=project.app).apply_async()

    assert result.get(timeout=20) == [0, 1, 2]


def test_a_chord_whose_members_and_body_retry_calls_its_body_once(project, task):
    header = [task("add", number, 1, failures=number % 2 + 1) for number in range(4)]
    result = chord(header, task("total", failures=1), app=project.app).apply_async()

    assert result.get(timeout=20) == 10
    assert retries(project, result.id) == [0, 1]


def test_a_chord_with_a_dead_member_fails_as_with_celerys_own_tasks(project, task):
    stories = {}
    for whose in ("plain", "ours"):
        body = task("total").on_error(task("note", of=whose, event="chord failed"))
        result = chord([task("add", 1, 1), task(f"{whose}.die")], body, app=project.app).apply_async()
        eventually(lambda: project.app.AsyncResult(result.id).ready() and project.records(of=whose))  # noqa: B023
        notes = len(project.records(event="chord failed", of=whose))
        error = project.app.AsyncResult(result.id).result
        stories[whose] = (type(error), str(error).partition(" raised ")[2], retries(project, result.id), notes)

    assert stories["ours"] == stories["plain"] == (ChordError, "ValueError('dead')", [], 1)


@pytest.mark.parametrize("name", ["overrun", "lose_its_process"])
def test_what_dies_under_the_eyes_of_the_main_process_alone_calls_each_errback_once(project, task, name):
    task(name).set(link_error=task("note", of=name, event="errback")).apply_async()
    body = task("total").on_error(task("note", of=name, event="chord failed"))
    chord([task("add", 1, 1), task(name)], body, app=project.app).apply_async()

    eventually(lambda: len({row["event"] for row in project.records(of=name)}) == 2)
    eventually(lambda: time.time() - project.records_file.stat().st_mtime > 1.0)
    assert sorted(row["event"] for row in project.records(of=name)) == ["chord failed", "errback"]


def test_link_fires_once_after_the_last_attempt_and_not_before(project, task):
    sent = task("add", 1, 2, failures=2).set(link=task("note", of="link", event="linked"))

    result = sent.apply_async()

    assert result.get(timeout=20) == 3
    (note,) = eventually(lambda: project.records(event="linked"))
    assert note["args"] == [3]
    assert note["at"] >= project.records(id=result.id)[-1]["at"]


def test_link_error_fires_once_after_the_last_attempt_and_not_before(project, task):
    result = task("ours.die").set(link_error=task("note", of="error", event="failed")).apply_async()

    (note,) = eventually(lambda: project.records(event="failed"))
    assert note["args"] == [result.id]
    assert note["at"] >= project.records(id=result.id)[-1]["at"]


def test_a_task_can_replace_itself_after_a_retry_and_what_replaces_it_can_retry(project, task):
    result = task("replace", 2, 3).apply_async()

    assert result.get(timeout=20) == 5
    runs = project.records(id=result.id)
    assert [(run["task"], run["retries"]) for run in runs] == [
        ("canvas.replace", 0), ("canvas.replace", 1), ("canvas.add", 0), ("canvas.add", 1),
    ]  # fmt: skip


def test_stamps_survive(project, task):
    sent = task("luggage")
    sent.stamp(order="7", customer="me")

    result = sent.apply_async()

    assert result.get(timeout=20) == "arrived"
    before, after = project.records(id=result.id)
    assert before["stamps"] == {"order": "7", "customer": "me"}
    assert after["stamps"] == before["stamps"]
    assert sorted(after["stamped_headers"]) == sorted(before["stamped_headers"])


def test_ids_addresses_limits_and_priority_survive(project, task):
    options = {"time_limit": 60, "soft_time_limit": 50, "priority": 3, "root_id": "the-root", "parent_id": "the-parent"}

    result = task("luggage", failures=2).apply_async(shadow="another.name", **options)

    assert result.get(timeout=20) == "arrived"
    first, *later = project.records(id=result.id)
    assert first["timelimit"] == [60, 50]
    assert first["reply_to"]
    for run in later:
        changed = {key for key in first if run[key] != first[key]}
        # Celery's own: what was not said about the result is said from the first retry on.
        assert changed <= {"retries", "at", "pid", "ignore_result"}


def test_a_task_without_parents_is_its_own_root_before_and_after(project, task):
    result = task("luggage").apply_async()

    assert result.get(timeout=20) == "arrived"
    before, after = project.records(id=result.id)
    assert before["root_id"] == after["root_id"] == result.id


def test_retry_can_change_limits_and_priority(project, task):
    result = task("luggage", time_limit=70, soft_time_limit=65).apply_async()

    assert result.get(timeout=20) == "arrived"
    assert [run["timelimit"] for run in project.records(id=result.id)] == [[None, None], [70, 65]]


def test_ignore_result_is_kept(project, task):
    result = task("luggage").apply_async(ignore_result=True)

    before, after = eventually(lambda: len(found := project.records(id=result.id)) == 2 and found)
    assert before["ignore_result"] is after["ignore_result"] is True


def test_expires_is_kept_and_is_no_shorter_time_in_the_lane(project, task):
    result = task("luggage", countdown=0.5).apply_async(expires=30)

    assert result.get(timeout=20) == "arrived"
    before, after = project.records(id=result.id)
    assert before["expires"] == after["expires"]
    assert after["at"] - before["at"] >= 0.5


def test_what_expires_while_it_waits_waits_to_the_end_and_is_revoked_not_run_and_not_dead(project, task):
    result = task("luggage", countdown=1.3).apply_async(expires=1.0)

    with pytest.raises(TaskRevokedError, match="expired"):
        result.get(timeout=20)
    (run,) = project.records(id=result.id)
    assert result.date_done.timestamp() - run["at"] >= 1.3
    assert result.id not in {letter.record.task_id for letter in project.dead()}


def test_what_is_revoked_while_it_waits_is_not_run_and_not_dead(project, task):
    result = task("luggage", countdown=0.8).apply_async()
    eventually(lambda: project.records(id=result.id) and result.state == "RETRY")

    project.app.control.revoke(result.id)

    with pytest.raises(TaskRevokedError):
        result.get(timeout=20)
    eventually(lambda: all(project.depth(project.grid_lane(800)) == 0 for _ in range(3)))
    project.send("succeed").get(timeout=20)
    assert retries(project, result.id) == [0]
    assert result.id not in {letter.record.task_id for letter in project.dead()}


def test_retry_that_does_not_throw_lets_the_body_go_on_and_comes_back_too(project, task):
    result = task("go_on").apply_async()

    eventually(lambda: retries(project, result.id) == [0, 1])
    assert project.records(id=result.id, event="went on")[0]["returned"] == "Retry"
    assert result.get(timeout=20) == "first"  # a result backend does not overwrite a success


def test_retry_with_other_arguments(project, task):
    result = task("change", 1, y=5).apply_async()

    # Keyword arguments take the place of all that there were; positional ones stay.
    assert result.get(timeout=20) == [2, 0, 99]
    assert [run["args"] for run in project.records(id=result.id)] == [[1, 5, 0], [2, 6, 1], [2, 0, 99]]


def test_without_a_limit_there_are_more_retries_than_celerys_three(project, task):
    result = task("endless", 6).apply_async()

    assert result.get(timeout=20) == "at last"
    assert retries(project, result.id) == [0, 1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("kind", ["aware", "elsewhere", "naive", "iso"])
def test_an_eta_is_kept_in_every_notation(project, task, kind):
    result = task("appointment", kind, 0.5).apply_async()

    result.get(timeout=20)
    (appointment,) = project.records(id=result.id, event="appointment")
    (_, second) = project.records(id=result.id, event="run")
    assert appointment["due"] <= second["at"] < appointment["due"] + 5


def test_an_eta_in_the_past_is_soon(project, task):
    result = task("appointment", "past", 0).apply_async()

    result.get(timeout=20)
    assert retries(project, result.id) == [0, 1]


def test_of_a_countdown_and_an_eta_celery_takes_the_countdown(task):
    eta = (datetime.now(timezone.utc) + timedelta(hours=1)).isoformat()

    result = task("luggage", countdown=0.1, eta=eta).apply_async()

    assert result.get(timeout=20) == "arrived"


def test_only_tasks_that_died_are_dead_letters(project):
    assert {letter.record.task for letter in project.dead()} == {
        "canvas.ours.die",
        "canvas.overrun",
        "canvas.lose_its_process",
    }


def test_results_find_their_way_back_over_rpc(request):
    with stage(request, result_backend="rpc://") as project:
        project.start(pool="solo", module="project_canvas").wait_until_ready()

        results = [project.app.send_task("canvas.add", (number, 1), {"failures": number}) for number in range(3)]

        assert [result.get(timeout=20) for result in results] == [1, 2, 3]
