"""A retry returns to the queue that it was consumed from, and only there, whatever exchanges and routes say."""

from __future__ import annotations

from collections import Counter

import pytest
from support import eventually

from tests.worker.stage import stage

DELAY = 0.3


@pytest.fixture(scope="module")
def project(request):
    """Two workers for all: one on every queue but the ordered one, one on that and the broadcast."""
    with stage(request) as it:
        subset = f"{it.prefix}.ordered,{it.prefix}.broadcast"
        workers = [
            it.start("-X", f"{it.prefix}.ordered", module="project_routing", concurrency=3),
            it.start("-Q", subset, "--prefetch-multiplier", "1", module="project_routing", concurrency=1),
        ]
        for worker in workers:
            worker.wait_until_ready()
        yield it


@pytest.fixture(scope="module")
def send(project):
    """Send a task of project_routing; names of the project are written with a dot in front."""

    def send(name, kwargs=None, **options):
        for option, value in options.items():
            if isinstance(value, str) and value.startswith("."):
                options[option] = project.prefix + value
        return project.app.send_task(f"routing.{name}", kwargs={"countdown": DELAY} | (kwargs or {}), **options)

    return send


def returned_to(project, result, queue):
    """That it ran twice, both times from this queue, and not before its time."""
    assert result.get(timeout=20) == project.prefix + queue
    first, second = project.records(id=result.id)
    assert first["queue"] == second["queue"] == project.prefix + queue
    assert second["retries"] == 1
    assert second["at"] - first["at"] >= DELAY
    assert second["info"] == first["info"]
    return True


def test_direct_exchange_with_a_routing_key_unlike_the_queue(project, send):
    result = send("plain", exchange=".x-direct", routing_key="another.key")

    assert returned_to(project, result, ".direct")
    (_, second) = project.records(id=result.id)
    assert (second["info"]["exchange"], second["info"]["routing_key"]) == (f"{project.prefix}.x-direct", "another.key")


def test_after_a_countdown_a_task_sees_where_it_was_sent(project, send):
    result = send("plain", exchange=".x-topic", routing_key="order.far.away", countdown=0.5)

    assert returned_to(project, result, ".topic-two")
    (run, _) = project.records(id=result.id)
    address = {"exchange": f"{project.prefix}.x-topic", "routing_key": "order.far.away"}
    assert run["info"] == address | {"priority": 0, "redelivered": False}


def test_after_a_breaker_parked_it_a_task_sees_where_it_was_sent(project, send):
    sent = [send("fails", exchange=".ordered", routing_key=".ordered") for _ in range(3)]

    for result in sent:
        runs = eventually(lambda result=result: len(found := project.records(id=result.id)) == 2 and found, within=60)
        infos = [run["info"] for run in runs]
        assert {(info["exchange"], info["routing_key"]) for info in infos} == {(f"{project.prefix}.ordered",) * 2}
        assert {frozenset(info) for info in infos} == {
            frozenset(("exchange", "routing_key", "priority", "redelivered"))
        }
    assert "parked task=routing.fails" in project._running[1].log


def test_default_exchange(project, send):
    result = send("plain", queue=".default-exchange")

    assert returned_to(project, result, ".default-exchange")


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("topic", {"routing_key": "order.new"}),
        ("fanout", {"routing_key": "ignored"}),
        ("headers", {"routing_key": "ignored", "headers": {"kind": "report"}}),
    ],
)
def test_of_two_queues_with_a_copy_each_only_the_one_that_asked_gets_a_retry(project, send, kind, message):
    one, two = (f"{project.prefix}.{kind}-{number}" for number in ("one", "two"))

    result = send("plain", {"only": one}, exchange=f".x-{kind}", **message)

    runs = eventually(lambda: len(found := project.records(id=result.id)) == 3 and found)
    assert [run["retries"] for run in runs if run["queue"] == one] == [0, 1]
    assert [run["retries"] for run in runs if run["queue"] == two] == [0]
    assert {run["info"]["exchange"] for run in runs} == {f"{project.prefix}.x-{kind}"}
    assert {run["info"]["routing_key"] for run in runs} == {message["routing_key"]}


def test_every_worker_retries_its_own_copy_of_a_broadcast(project, send):
    result = send("plain", exchange=".broadcast", routing_key="ignored")

    runs = eventually(lambda: len(found := project.records(id=result.id)) == 4 and found)
    by_worker = {run["worker"]: [] for run in runs}
    for run in runs:
        by_worker[run["worker"]].append((run["retries"], run["queue"]))
    first, second = by_worker.values()
    assert [retries for retries, _ in first] == [retries for retries, _ in second] == [0, 1]
    assert len({queue for _, queue in first}) == len({queue for _, queue in second}) == 1
    assert first[0][1] != second[0][1]


def test_dead_letters_of_a_broadcast_are_kept_under_its_own_name_not_the_random_one_of_its_queue(project):
    result = project.send("fail", exchange=f"{project.prefix}.broadcast", routing_key="ignored")

    letters = eventually(lambda: len(found := project.dead(f"{project.prefix}.broadcast")) == 2 and found)
    assert {letter.record.task_id for letter in letters} == {result.id}
    assert len({letter.record.worker for letter in letters}) == 2


@pytest.mark.parametrize("way", ["by_map", "by_function", "by_queue", "by_attribute"])
def test_a_route_of_the_task_neither_shortens_the_wait_nor_moves_the_retry(project, send, way):
    result = send(way, queue=".default-exchange")

    assert returned_to(project, result, ".default-exchange")


@pytest.mark.parametrize(
    ("way", "exchange", "queue"),
    [
        ("by_function", ".x-direct", ".direct"),
        ("by_map", ".x-topic", ".topic-one"),
        ("by_queue", ".x-fanout", ".fanout-one"),
    ],
)
def test_a_task_on_its_own_route_waits_too(project, send, way, exchange, queue):
    key = {".x-direct": "another.key", ".x-topic": "order.new"}.get(exchange, "ignored")

    result = send(way, {"only": project.prefix + queue}, exchange=exchange, routing_key=key)

    runs = eventually(lambda: len(f := project.records(id=result.id, queue=project.prefix + queue)) == 2 and f)
    assert runs[1]["at"] - runs[0]["at"] >= DELAY


def test_retry_with_a_queue_moves_the_task_there(project, send):
    result = send("plain", {"queue": f"{project.prefix}.direct"}, queue=".default-exchange")

    assert result.get(timeout=20) == f"{project.prefix}.direct"
    first, second = project.records(id=result.id)
    assert first["queue"] == f"{project.prefix}.default-exchange"
    assert second["at"] - first["at"] >= DELAY
    assert (second["info"]["exchange"], second["info"]["routing_key"]) == ("", f"{project.prefix}.direct")


def test_retry_with_exchange_and_routing_key_moves_the_task_to_the_queue_behind_them(project, send):
    there = {"exchange": f"{project.prefix}.x-direct", "routing_key": "another.key"}

    result = send("plain", there, queue=".default-exchange")

    assert result.get(timeout=20) == f"{project.prefix}.direct"


def test_retry_to_an_exchange_that_leads_nowhere_is_a_dead_letter_that_says_so(project, send):
    nowhere = {"exchange": "nowhere", "routing_key": "no.such.key"}

    result = send("plain", nowhere, queue=".default-exchange")

    (letter,) = eventually(lambda: project.dead(f"{project.prefix}.default-exchange"))
    assert letter.record.task_id == result.id
    assert (letter.record.reason, letter.record.error_type) == ("failed", "InvalidRoute")
    assert "no.such.key" in letter.record.error


def test_retry_to_a_queue_that_does_not_exist_yet_waits_there_for_a_consumer(project, send):
    later = f"{project.prefix}.later"

    result = send("plain", {"queue": later}, queue=".default-exchange")

    assert eventually(lambda: project.depth(later)) == 1
    add_consumer(project, later)
    assert result.get(timeout=20) == later


def test_a_queue_that_a_running_worker_was_told_to_consume_has_retries_and_dead_letters(project, send):
    added = f"{project.prefix}.added"
    add_consumer(project, added)

    retried = send("plain", queue=added)
    failed = project.send("fail", queue=added)

    assert returned_to(project, retried, ".added")
    (letter,) = eventually(lambda: project.dead(added))
    assert letter.record.task_id == failed.id
    assert letter.record.queue == added


def test_a_worker_on_a_subset_of_queues_gets_its_retries_back_in_order_of_priority(project, send):
    ordered = {"exchange": ".ordered", "routing_key": ".ordered"}
    send("plain", {"countdown": 0.8}, **ordered).get(timeout=20)  # makes the lane, which takes two seconds
    results = [send("plain", {"countdown": 0.8}, priority=priority, **ordered) for priority in (1, 9, 5)]
    eventually(lambda: all(project.records(id=result.id) for result in results))
    hold = send("hold", {"seconds": 1.6}, **ordered)
    low, high, middle = results

    assert {result.get(timeout=20) for result in results} == {f"{project.prefix}.ordered"}

    ids = {result.id for result in results}
    held = project.records(id=hold.id)[0]["at"]
    second_runs = [run for run in project.records(retries=1) if run["id"] in ids]
    assert all(run["at"] >= held + 1.6 for run in second_runs)
    assert [run["id"] for run in second_runs] == [high.id, middle.id, low.id]
    assert [run["priority"] for run in second_runs] == [9, 5, 1]


def test_after_all_this_no_attempt_was_delivered_twice_and_no_retry_is_an_orphan(project, send):
    send("plain", {"countdown": 0}, queue=".default-exchange").get(timeout=20)

    attempts = Counter((run["id"], run["retries"], run["queue"]) for run in project.records())
    assert set(attempts.values()) == {1}
    assert project.depth(project.names.orphans()) == 0


def add_consumer(project, queue):
    (answer,) = project.app.control.add_consumer(queue, destination=[f"w1.{project.prefix}@h"], reply=True, timeout=10)
    assert "ok" in answer[f"w1.{project.prefix}@h"]


def test_a_replayed_task_and_its_retries_see_their_work_queue(project, send):
    """A replay goes to one queue, by its name, and not through the exchange with its other queues."""
    queue = f"{project.prefix}.direct"
    result = send("fails", exchange=".x-direct", routing_key="another.key")
    eventually(lambda: project.dead(queue))

    assert project.celery("dlx", "dead", "replay", "--queue", queue, result.id, "--yes").returncode == 0

    runs = eventually(lambda: len(found := project.records(id=result.id)) == 4 and found)
    addresses = [(run["info"]["exchange"], run["info"]["routing_key"]) for run in runs]
    assert addresses == [(f"{project.prefix}.x-direct", "another.key")] * 2 + [("", queue)] * 2
