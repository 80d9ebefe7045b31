"""What Celery tells about a task — states, events, signals, hooks, errbacks — is the same, and as often, with us."""

from __future__ import annotations

import itertools
import re
import secrets
import time
from collections import Counter
from contextlib import suppress

import pytest
from celery import states
from support import eventually

from tests.worker.stage import listening, stage

RUNS = {
    "retries_then_succeeds": 3,
    "is_exhausted": 3,
    "is_exhausted_without_an_error": 2,
    "is_exhausted_and_knows_what_to_do": 2,
    "retries_with_a_countdown_that_has_passed": 2,
    "fails": 1,
    "rejects": 1,
    "rejects_and_requeues": 2,
    "ignores": 1,
    "autoretries_to_the_end": 3,
    "autoretries_all_but_some": 2,
    "autoretries_with_kwargs": 2,
    "autoretries_without_throwing": 2,
    "autoretries_with_backoff": 3,
    "autoretries_with_limited_backoff": 3,
    "autoretries_with_jitter": 3,
    "overrides_max_retries": 2,
    "overrides_max_retries_under_autoretry": 2,
    "retries_and_goes_on": 2,
    "retries_and_fails": 2,
}
TWINS = ("plain", "ours")
# Names of parameters on the way of a task's arguments, in Celery's functions or in ours.
# Not "self": Celery's worker takes none.
ARGUMENTS = [
    *("cls", "task", "request", "queue", "body", "hook", "attempt", "args", "kwargs", "uuid", "func", "fun"),
    *("name", "app", "exc", "eta", "countdown", "throw", "max_retries", "task_id", "retries", "message", "headers"),
    *("options", "policy", "dlx_wait", "it", "n", "tracer", "seen"),
]


@pytest.fixture(scope="module")
def project(request):
    with stage(request) as it:
        # The event exchange is shared by all that uses this broker.
        it.conf["event_exchange"] = f"{it.prefix}.events"
        it.start("-E", module="project_twins", concurrency=4).wait_until_ready()
        yield it


class Story:
    """All that was told about one task."""

    def __init__(self, project, result, events, *, twin):
        self.names = (result.id, f"twins.{twin}.")
        records = [*project.records(id=result.id), *project.records(failed=result.id), *project.records(of=result.id)]
        self.records = Counter((row["event"], row.get("status"), self.anonymous(row.get("error"))) for row in records)
        self.events = Counter(event["type"] for event in events if event.get("uuid") == result.id)
        self.heard = [event for event in events if event.get("uuid") == result.id]
        state = project.app.events.State()
        self.states = []
        for event in self.heard:
            state.event(event)
            self.states.append(state.tasks[result.id].state)
        self.shown, self.queue = state.tasks[result.id], project.queue
        self.received_etas = [event["eta"] for event in events if is_of(event, result, "task-received")]
        self.retried = [event for event in events if is_of(event, result, "task-retried")]
        self.state, self.result = result.state, self.anonymous(repr(result.result))
        self.runs = runs(project, result)
        starts = project.records(id=result.id, event="before_start")
        self.seen_etas = [row["eta"] for row in starts]
        self.deliveries = [row["delivery_info"] for row in starts]
        at = [row["at"] for row in starts]
        self.gaps = [after - before for before, after in itertools.pairwise(at)]

    def anonymous(self, text):
        for name in self.names:
            text = text and text.replace(name, "")
        return text


def is_of(event, result, kind):
    return (event["type"], event.get("uuid")) == (kind, result.id)


@pytest.fixture(scope="module")
def stories(project):
    """Every scenario once for each twin, all at the same time; what became of them."""
    app, events = project.app, []
    with listening(app, events):
        sent = {(twin, scenario): send(app, twin, scenario) for scenario in RUNS for twin in TWINS}
        with suppress(AssertionError):  # what is missing fails in its own test
            eventually(lambda: all(runs(project, sent[key]) >= RUNS[key[1]] for key in sent))
        eventually(lambda: is_quiet(project))
    return {key: Story(project, result, events, twin=key[0]) for key, result in sent.items()}


def runs(project, result):
    return len(project.records(id=result.id, event="task_postrun"))


def send(app, twin, scenario):
    task_id = secrets.token_hex(8)
    errbacks = [app.signature("twins.errback"), app.signature("twins.errback_with_details")]
    callback = app.signature("twins.callback", kwargs={"of": task_id})
    name = f"twins.{twin}.{scenario}"
    return app.send_task(name, task_id=task_id, link=callback, link_error=errbacks)


def is_quiet(project):
    return time.time() - project.records_file.stat().st_mtime > 1.0


@pytest.mark.parametrize("scenario", RUNS)
def test_every_state_hook_signal_errback_and_callback_is_told_as_often_as_by_celery(stories, scenario):
    plain, ours = stories["plain", scenario], stories["ours", scenario]

    assert ours.records == plain.records
    assert (ours.state, ours.result) == (plain.state, plain.result)
    assert ours.runs == plain.runs == RUNS[scenario]


@pytest.mark.parametrize("scenario", RUNS)
def test_a_task_sees_the_delivery_info_that_celery_shows(stories, scenario):
    plain, ours = stories["plain", scenario], stories["ours", scenario]

    assert ours.deliveries == plain.deliveries


@pytest.mark.parametrize("scenario", RUNS)
def test_every_event_is_sent_as_often_as_by_celery(stories, scenario):
    plain, ours = stories["plain", scenario], stories["ours", scenario]

    assert ours.events - Counter({"task-dead-lettered": 1}) == plain.events
    assert ours.events["task-received"] == RUNS[scenario]


@pytest.mark.parametrize("scenario", [it for it in RUNS if it != "autoretries_with_jitter"])  # which may draw 0
def test_a_task_and_its_received_events_have_an_eta_where_celery_has_one(stories, scenario):
    plain, ours = stories["plain", scenario], stories["ours", scenario]

    assert [eta is not None for eta in ours.received_etas] == [eta is not None for eta in plain.received_etas]
    assert ours.seen_etas == ours.received_etas
    assert plain.seen_etas == plain.received_etas


@pytest.mark.parametrize("scenario", RUNS)
def test_a_retried_event_tells_when_the_task_runs_again(stories, scenario):
    ours = stories["ours", scenario]

    assert {event["eta"] for event in ours.retried} <= {*ours.received_etas} - {None}


@pytest.mark.parametrize("scenario", RUNS)
def test_after_the_failed_event_of_a_dead_letter_comes_one_that_says_so(stories, scenario):
    ours = stories["ours", scenario]

    types = [event["type"] for event in ours.heard]
    letters = [event for event in ours.heard if event["type"] == "task-dead-lettered"]
    # A task that asked for a retry, and then failed, is retried. A rejected one has not failed for Celery before 5.7.
    assert len(letters) == ("task-failed" in types and scenario != "retries_and_fails")
    for letter in letters:
        assert types[types.index("task-dead-lettered") - 1] == "task-failed"
        assert (letter["attempts"], letter["queue"]) == (RUNS[scenario], ours.queue)
        assert letter["reason"] in {"exhausted", "failed", "rejected"}
        assert re.fullmatch(r"[0-9a-f]{8}", letter["group"])


@pytest.mark.parametrize("scenario", RUNS)
def test_a_monitor_never_has_a_state_that_celery_does_not_know(stories, scenario):
    assert set(stories["ours", scenario].states) <= states.ALL_STATES | {states.REJECTED}


@pytest.mark.parametrize("scenario", RUNS)
def test_a_monitor_has_the_last_state_that_it_has_with_celery(stories, scenario):
    plain, ours = stories["plain", scenario], stories["ours", scenario]

    assert ours.shown.state == plain.shown.state


@pytest.mark.parametrize(
    # Not "rejects": a failure since Celery 5.7 only.
    "scenario",
    ["is_exhausted", "is_exhausted_without_an_error", "fails", "autoretries_to_the_end"],
)
def test_a_task_that_dies_has_one_failure_and_one_call_of_each_errback(stories, scenario):
    told = Counter()
    for (event, _, _), times in stories["ours", scenario].records.items():
        told[event] += times

    assert told["task_failure"] == told["errback"] == told["errback_with_details"] == 1
    assert stories["ours", scenario].state == "FAILURE"


@pytest.mark.parametrize(
    ("scenario", "delays_ms"),
    [
        ("is_exhausted", [100, 100]),
        ("autoretries_with_kwargs", [100]),
        ("autoretries_with_backoff", [1000, 2000]),
        ("autoretries_with_limited_backoff", [1000, 1000]),
    ],
)
def test_the_delays_are_those_that_celery_documents(project, stories, scenario, delays_ms):
    (letter,) = [letter for letter in project.dead() if letter.record.task == f"twins.ours.{scenario}"]

    assert [failure.delay_ms for failure in letter.history] == [*delays_ms, None]
    for twin in TWINS:
        for gap, delay_ms in zip(stories[twin, scenario].gaps, delays_ms, strict=True):
            assert gap >= delay_ms / 1000


@pytest.mark.usefixtures("stories")
def test_jitter_chooses_from_nothing_to_the_backoff(project):
    (letter,) = [letter for letter in project.dead() if letter.record.task == "twins.ours.autoretries_with_jitter"]

    # Celery's full jitter chooses whole seconds, here 0 or 1; a lane is never shorter than 0.1 s.
    first, second, _ = (failure.delay_ms for failure in letter.history)
    assert {first, second} <= {100, 1000}


@pytest.mark.usefixtures("stories")
def test_what_celery_would_have_lost_is_a_dead_letter_and_nothing_else_is(project):
    reasons = {letter.record.task.removeprefix("twins.ours."): letter.record.reason for letter in project.dead()}

    assert reasons == {
        "is_exhausted": "exhausted",
        "is_exhausted_without_an_error": "exhausted",
        "fails": "failed",
        "rejects": "rejected",
        "autoretries_to_the_end": "exhausted",
        "autoretries_all_but_some": "failed",
        "autoretries_with_kwargs": "exhausted",
        "autoretries_without_throwing": "exhausted",
        "autoretries_with_backoff": "exhausted",
        "autoretries_with_limited_backoff": "exhausted",
        "autoretries_with_jitter": "exhausted",
        "overrides_max_retries": "exhausted",
        "overrides_max_retries_under_autoretry": "exhausted",
    }


def test_one_retry_with_another_limit_leaves_the_limit_of_later_runs_alone(project):
    # Celery's own keeps the five for the rest of its process: autoretry would then try six times.
    app, name = project.app, "twins.ours.sometimes_wants_more"
    wanting = [app.send_task(name, kwargs={"more": 5}) for _ in range(8)]
    eventually(lambda: all(len(project.records(id=one.id, event="run")) >= 2 for one in wanting))

    modest = [app.send_task(name) for _ in range(8)]

    for result in modest:
        with pytest.raises(ValueError, match="always"):
            result.get(timeout=20)
        assert len(project.records(id=result.id, event="run")) == 2


@pytest.mark.parametrize("task", ["takes_anything", "takes_anything_unbound"])
def test_a_keyword_argument_may_have_any_name_that_it_may_have_with_celery(project, task):
    sent = {
        (twin, name): project.app.send_task(f"twins.{twin}.{task}", kwargs={name: "given"})
        for name in ARGUMENTS
        for twin in TWINS
    }

    ends = {key: (result.get(timeout=20, propagate=False), result.state) for key, result in sent.items()}

    assert {key: end for key, end in ends.items() if end != ({key[1]: "given"}, "SUCCESS")} == {}
