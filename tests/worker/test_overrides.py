"""Users' own task classes, as Flask's documentation has them, keep retries and dead letters; so do whole apps."""

from __future__ import annotations

import secrets

import pytest
from celery import chord, chunks, xmap, xstarmap
from support import eventually

from tests.worker.stage import stage

BASES = [
    *("Mixed", "Direct", "Polite", "Grandchild", "OfItsOwn"),
    *("MixedPolite", "Theirs", "TheirsPolite", "TheirsLater"),
]
HOOKS = ["Static", "OfTheClass", "Callable", "Partial", "Read", "Inherited", "Option", "Set", "Annotated"]


@pytest.fixture(scope="module")
def project(request):
    with stage(request) as it:
        it.log_of = it.start(module="project_flask").wait_until_ready()
        yield it


@pytest.fixture(scope="module")
def threads(request):
    """The same with a pool of threads, which publish their retries by themselves."""
    with stage(request) as it:
        it.log_of = it.start(module="project_flask", pool="threads", concurrency=8).wait_until_ready()
        yield it


def send(project, base, wish):
    return project.app.send_task(f"flask.{base}", (wish,))


def dead_letter(project, result):
    return eventually(lambda: [one for one in project.dead() if one.record.task_id == result.id])[0]


def told(project, result):
    """Which hooks ran, up to the last one, which is called when the result is there already."""
    eventually(lambda: project.records(id=result.id, event="after_return"))
    return [row["event"] for row in project.records(id=result.id)]


@pytest.mark.parametrize("base", BASES)
def test_a_body_that_runs_inside_a_context_is_retried(project, base):
    result = send(project, base, "heal")

    assert result.get(timeout=20) == "heal"
    runs = project.records(id=result.id)
    assert [(run["retries"], run["context"], run["requests"]) for run in runs] == [(0, ["open"], 1), (1, ["open"], 1)]


@pytest.mark.parametrize("base", BASES)
def test_a_body_that_fails_inside_a_context_is_one_dead_letter(project, base):
    result = send(project, base, "fail")

    with pytest.raises(ValueError, match="no luck"):
        result.get(timeout=20)
    letter = dead_letter(project, result)
    assert (letter.record.reason, letter.record.error) == ("failed", "no luck")
    assert "in body" in letter.record.traceback


def test_a_check_before_the_start_that_fails_is_one_dead_letter_and_the_body_does_not_run(project):
    result = send(project, "Checks", "refuse")

    with pytest.raises(PermissionError, match="not today"):
        result.get(timeout=20)
    letter = dead_letter(project, result)
    assert (letter.record.reason, letter.record.error_type) == ("failed", "PermissionError")
    assert told(project, result) == ["before_start", "on_failure", "after_return"]


def test_a_check_before_the_start_may_retry(project):
    result = send(project, "Checks", "later")

    assert result.get(timeout=20) == "later"
    assert told(project, result) == ["before_start", "on_retry", "before_start", "run", "after_return"]


@pytest.mark.parametrize("kind", HOOKS)
def test_a_check_before_the_start_may_be_any_callable(project, kind):
    result = send(project, kind, "pass")

    assert result.get(timeout=20) == "pass"
    (check,) = project.records(id=result.id, event="before_start")
    assert check["given"] == [result.id, ["pass"]]


@pytest.mark.parametrize("kind", HOOKS)
def test_any_callable_that_fails_before_the_start_leaves_one_dead_letter(project, kind):
    result = send(project, kind, "refuse")

    with pytest.raises(PermissionError, match="not today"):
        result.get(timeout=20)
    letter = dead_letter(project, result)
    assert (letter.record.reason, letter.record.error_type) == ("failed", "PermissionError")
    assert len(project.records(id=result.id, event="before_start")) == 1
    assert not project.records(id=result.id, event="run")


def test_a_hook_that_is_none_is_not_called(project):
    assert send(project, "NoHook", "pass").get(timeout=20) == "pass"


def test_what_an_annotation_puts_around_a_hook_is_called(project):
    result = send(project, "Annotated", "pass")

    assert result.get(timeout=20) == "pass"
    assert len(project.records(id=result.id, event="annotation")) == 1


def test_a_retry_that_another_base_class_keeps_to_itself_leaves_the_task_on_its_queue(project):
    result = send(project, "Locked", "heal")

    assert result.get(timeout=30) == "heal"
    *before, last = [run["retries"] for run in project.records(id=result.id)]
    assert (set(before), last) == ({0}, 1)
    assert len(before) >= 2
    assert "A retry of the task 'flask.Locked' was not published" in project.log_of.log


def test_a_retry_that_a_base_class_below_ours_keeps_to_itself_is_not_replaced_by_an_earlier_one(project):
    before = [send(project, "Below", "heal") for _ in range(6)]
    for each in before:
        each.get(timeout=30)

    result = project.app.send_task("flask.Below", ("heal",), task_id=f"keep-{secrets.token_hex(4)}")

    assert result.get(timeout=30) == "heal"
    assert {len(project.records(id=each.id)) for each in before} == {2}
    assert "A retry of the task 'flask.Below' was not published" in project.log_of.log


@pytest.mark.parametrize("wish", ["heal", "go on"])
@pytest.mark.parametrize("pool", ["project", "threads"])
def test_a_retry_that_a_base_class_below_ours_keeps_is_not_believed_to_be_published(request, pool, wish):
    project = request.getfixturevalue(pool)

    result = project.app.send_task("flask.Below", (wish,), task_id=f"keep-{secrets.token_hex(4)}")

    eventually(lambda: project.records(id=result.id, retries=1))
    assert [run["retries"] for run in project.records(id=result.id)] == [0, 0, 1]
    assert f"not handed over task=flask.Below id={result.id}: A retry of the task" in project.log_of.log
    assert project.log_of.log.count(f"retry scheduled task=flask.Below id={result.id}") == 1


def test_hooks_that_do_not_call_super_change_nothing(project):
    result = send(project, "Checks", "fail")

    assert dead_letter(project, result).record.reason == "failed"
    assert told(project, result) == ["before_start", "run", "on_failure", "after_return"]
    assert result.state == "FAILURE"


def test_a_map_in_an_app_that_has_another_task_class_is_celerys(project):
    app = project.app

    result = xmap(app.signature("flask.Direct", app=app), ["fail"], app=app).apply_async()

    with pytest.raises(ValueError, match="no luck"):
        result.get(timeout=20)
    project.send("succeed").get(timeout=20)
    assert result.id not in {letter.record.task_id for letter in project.dead()}


def test_after_all_this_every_failure_is_one_dead_letter(project):
    project.send("succeed").get(timeout=20)

    ids = [letter.record.task_id for letter in project.dead()]
    assert len(ids) == len(set(ids)) == len(BASES) + len(HOOKS) + 2
    assert project.depth(project.queue) == 0


@pytest.fixture(scope="module")
def adopted(request):
    # Without a native join the chord waits by chord_unlock, a task of Celery's that polls by retries.
    with stage(request, result_chord_retry_interval=0.2) as it:
        it.conf["result_backend"] = f"file://{it.results}"
        # A retry() without a delay, and without an hour for its test.
        it.conf["task_annotations"] = {"celery.map": {"default_retry_delay": 0.1, "max_retries": 1}}
        it.start(module="project_adopted").wait_until_ready()
        yield it


def test_a_whole_app_is_adopted_by_its_task_class_and_celerys_own_tasks_are_left_alone(adopted):
    app = adopted.app

    healed, failed = app.send_task("adopted.heal"), app.send_task("adopted.fail")
    header = [app.signature("adopted.heal", app=app) for _ in range(2)]
    total = chord(header, app.signature("adopted.kinds", immutable=True, app=app), app=app).apply_async()

    assert healed.get(timeout=20) == "healed"
    kinds = total.get(timeout=20)
    assert dead_letter(adopted, failed).record.reason == "failed"
    internal = {name for name in kinds if name.startswith("celery.")} - {
        "celery.map",
        "celery.starmap",
        "celery.chunks",
    }
    assert internal >= {"celery.chord_unlock", "celery.backend_cleanup", "celery.accumulate"}
    for name, (acks_late, request_class) in kinds.items():
        assert acks_late is (name not in internal)
        assert ("celery_dlx_retry" in request_class) is (name not in internal)
    assert adopted.depth(adopted.grid_lane(200)) is None


def inverse(app):
    return app.signature("adopted.inverse", app=app)


def test_maps_and_chunks_of_an_adopted_app_run(adopted):
    app = adopted.app

    mapped = xmap(inverse(app), [1, 2], app=app).apply_async()
    starmapped = xstarmap(inverse(app), [(1, 3), (2, 3)], app=app).apply_async()
    chunked = chunks(inverse(app), [(1, 3), (2, 3), (3, 3)], 2, app=app).apply_async()

    assert mapped.get(timeout=20) == [1, 0.5]
    assert starmapped.get(timeout=20) == [3, 1.5]
    assert chunked.get(timeout=20) == [[3, 1.5], [1]]
    assert all(run["is_direct"] for run in adopted.records(task="adopted.inverse"))


def test_a_chunk_that_fails_in_an_adopted_app_is_one_dead_letter_and_the_others_end(adopted):
    app = adopted.app

    results = chunks(inverse(app), [(1, 3), (0, 3), (3, 3)], 2, app=app).apply_async().results

    with pytest.raises(ZeroDivisionError):
        results[0].get(timeout=20)
    assert results[1].get(timeout=20) == [1]
    letter = dead_letter(adopted, results[0])
    assert (letter.record.reason, letter.record.task) == ("failed", "celery.starmap")


def test_a_map_whose_item_asks_for_a_retry_with_an_error_fails_of_it_as_a_direct_call_does(adopted):
    app = adopted.app

    result = xstarmap(inverse(app), [("later",)], app=app).apply_async()

    with pytest.raises(OSError, match="not now"):
        result.get(timeout=20)
    assert dead_letter(adopted, result).record.reason == "failed"


def test_a_map_whose_item_asks_for_a_retry_without_an_error_is_retried_as_a_whole_and_then_kept(adopted):
    # Celery stores RETRY, acknowledges, and never runs it again.
    app = adopted.app

    result = xmap(inverse(app), [1, "again"], app=app).apply_async()

    letter = dead_letter(adopted, result)
    assert (letter.record.reason, letter.record.attempts) == ("exhausted", 2)
    assert result.state == "FAILURE"


def test_a_map_with_a_countdown_waits_in_the_broker(adopted):
    app = adopted.app

    result = xmap(inverse(app), [4], app=app).apply_async(countdown=0.3)

    assert result.get(timeout=20) == [0.25]


def test_after_the_maps_each_failure_is_one_dead_letter(adopted):
    ids = [letter.record.task_id for letter in adopted.dead()]

    assert len(ids) == len(set(ids))
    assert adopted.depth(adopted.queue) == 0
