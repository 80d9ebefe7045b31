"""A retry whose content no broker takes is a dead letter, and disturbs no other task."""

from __future__ import annotations

from collections import Counter

import pytest
from support import eventually

from tests.worker.odd_options import ODD

GOOD = 60


@pytest.fixture
def size_limit(broker):
    """Let the broker take no longer message than this from new channels."""

    def limit(size):
        broker.ctl(
            "eval",
            f"application:set_env(rabbit, max_message_size, {size}), persistent_term:put(max_message_size, {size}).",
        )

    yield limit
    limit(16_777_216)


def send(project, name, *args, headers=None, **kwargs):
    errback = project.app.signature("odd.note")
    return project.app.send_task(f"odd.{name}", args, kwargs, link_error=errback, headers=headers)


def runs(project):
    return Counter(run["id"] for run in project.records(event="run"))


def letters_of(project, results):
    """The dead letters of these tasks, once there is one for each."""
    found = {letter.record.task_id: letter for letter in project.dead()}
    return found if found.keys() >= {result.id for result in results} else None


@pytest.mark.parametrize("pool", ["prefork", "solo", "threads"])
def test_a_retry_that_cannot_be_published_is_a_dead_letter_and_doubles_no_other_task(project, pool):
    project.conf["worker_prefetch_multiplier"] = 20
    with project.worker(pool=pool, module="project_odd") as worker:
        good, odd = [], {}
        for kind in ODD:
            good += [send(project, "good") for _ in range(GOOD // len(ODD))]
            odd[kind] = send(project, "ask", kind)
        odd["a long routing key"] = send(project, "route")
        odd["a policy's retry"] = send(project, "by_policy")
        odd["a change to what came"] = send(project, "change", headers={"given": {"sound": 1}})

        letters = eventually(lambda: letters_of(project, odd.values()), within=60)
        assert {result.get(timeout=60) for result in good} == {"healed"}
        eventually(lambda: len(project.records(event="errback")) >= len(odd))
        states = {kind: project.app.AsyncResult(result.id).state for kind, result in odd.items()}

    assert states == dict.fromkeys(odd, "FAILURE")
    assert len(project.dead()) == len(odd)
    found = {kind: letters[result.id].record for kind, result in odd.items()}
    assert {kind: str(record.reason) for kind, record in found.items()} == dict.fromkeys(odd, "failed")
    told = {kind for kind, record in found.items() if "cannot be published" in record.error}
    assert told == odd.keys() - {"a long routing key"}  # its queue cannot even be declared
    assert {runs(project)[result.id] for result in good} == {2}
    assert {kind: runs(project)[odd[kind].id] for kind in ODD} == dict.fromkeys(ODD, 1)
    assert Counter(row["of"] for row in project.records(event="errback")) == Counter(it.id for it in odd.values())
    for words in ("not handed over", "cannot be reached", "r" * 256):
        assert words not in worker.log


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_retry_over_the_brokers_size_limit_is_a_dead_letter_and_doubles_no_other_task(project, pool, size_limit):
    size_limit(300_000)
    with project.worker(pool=pool, module="project_odd") as worker:
        odd = [send(project, "grow"), send(project, "grow", swallow=True)]
        good = [send(project, "good") for _ in range(20)]
        odd += [send(project, "grow", "x" * 200_000), send(project, "grow")]

        letters = eventually(lambda: letters_of(project, odd), within=60)
        assert {result.get(timeout=60) for result in good} == {"healed"}
        eventually(lambda: len(project.records(event="errback")) >= len(odd))
        assert {project.app.AsyncResult(result.id).state for result in odd} == {"FAILURE"}

    assert {str(letters[result.id].record.reason) for result in odd} == {"failed"}
    assert all("is larger than configured max size 300000" in letter.record.error for letter in letters.values())
    assert {runs(project)[result.id] for result in good} == {2}
    assert {runs(project)[result.id] for result in odd} == {1}
    assert Counter(row["of"] for row in project.records(event="errback")) == Counter(it.id for it in odd)
    assert "not handed over" not in worker.log


def test_what_the_broker_refuses_from_the_main_process_is_a_dead_letter_too(project, size_limit):
    """A limit that is so low is found out by the first message over it."""
    size_limit(30_000)
    with project.worker(module="project_odd"):
        odd = [send(project, "grow", size=40_000) for _ in range(3)]
        letters = eventually(lambda: letters_of(project, odd), within=60)
        eventually(lambda: len(project.records(event="errback")) >= len(odd))
        assert {project.app.AsyncResult(result.id).state for result in odd} == {"FAILURE"}
        good = [send(project, "good") for _ in range(20)]
        later = send(project, "grow", size=40_000)
        assert {result.get(timeout=60) for result in good} == {"healed"}
        eventually(lambda: letters_of(project, [later]), within=60)

    assert {str(letters[result.id].record.reason) for result in odd} == {"failed"}
    assert all("is larger than configured max size 30000" in letter.record.error for letter in letters.values())
    assert {runs(project)[result.id] for result in good} == {2}
    assert {runs(project)[result.id] for result in [*odd, later]} == {1}
    assert Counter(row["of"] for row in project.records(event="errback")) == Counter(it.id for it in [*odd, later])


def test_a_task_that_is_over_a_lowered_size_limit_stays_on_its_queue_and_holds_up_no_other(project, size_limit):
    big = [send(project, "good", "x" * 200_000) for _ in range(2)]
    size_limit(100_000)
    with project.worker(module="project_odd") as worker:
        eventually(lambda: all(runs(project)[it.id] >= 2 for it in big), within=60)

        good = [send(project, "good") for _ in range(20)]
        assert {result.get(timeout=60) for result in good} == {"healed"}
        assert {runs(project)[result.id] for result in good} == {2}
        assert project.dead() == []
        assert "FAILURE" not in {result.state for result in big}

    size_limit(16_777_216)
    with project.worker(module="project_odd"):
        assert {result.get(timeout=60) for result in big} == {"healed"}
    assert "not handed over" in worker.log
    assert project.dead() == []
