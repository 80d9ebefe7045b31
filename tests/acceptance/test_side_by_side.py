"""What Flower, celery-exporter, Celery's event state and Prometheus show of the same tasks: plain Celery's and ours.

DLX_WRITE_TRANSCRIPTS=1 writes the tables of docs/monitoring.md.
"""

from __future__ import annotations

import os
import re
from contextlib import ExitStack, closing
from datetime import datetime
from pathlib import Path
from urllib.request import urlopen

import pytest
from support import eventually

from celery_dlx_retry.testing.sandbox import LOOPBACK, wait_until
from tests.acceptance.tenancy import Tenancy
from tests.prometheus import prometheus_program, run_prometheus
from tests.side_by_side import page
from tests.side_by_side.cases import CASES
from tests.side_by_side.world import TWINS, World

__all__ = ["prometheus_program"]

PAGE = Path(__file__).parents[2] / "docs" / "monitoring.md"


@pytest.fixture(scope="module")
def tenancy(broker, management):
    """A virtual host: celery-exporter listens to all events of one."""
    with closing(Tenancy(broker, management, "side-by-side")) as it:
        yield it


@pytest.fixture(scope="module")
def world(tenancy, broker, redis_url, tmp_path_factory):
    """All tasks have run."""
    with ExitStack() as stack:
        it = World(
            url=tenancy.url,
            backend=redis_url,
            folder=tmp_path_factory.mktemp("side-by-side"),
            stack=stack,
            management_url=broker.management_url,
        )
        stack.enter_context(closing(it))
        it.start()
        it.send_all()
        it.wait()
        yield it


@pytest.fixture(scope="module")
def seen(world):
    return world.seen()


@pytest.fixture(scope="module")
def prometheus(world, prometheus_program):
    targets = {"celery-exporter": world.exporter_port, "worker": world.worker_port, "exporter": world.dlx_port}
    found = {job: [f"{LOOPBACK}:{port}"] for job, port in targets.items()}
    # celery-exporter asks the workers at each scrape, and waits two seconds for their answers.
    with run_prometheus(prometheus_program, found, interval="6s") as it:
        eventually(lambda: it.value("sum(up)") == len(targets), within=60)
        yield it


def test_the_tables_of_the_page_are_what_the_tools_show(world, management, tenancy):
    def unacknowledged(twin):
        """Messages of the work queue that its worker holds."""
        return management.call("GET", f"/queues/{tenancy.vhost}/{twin}").get("messages_unacknowledged")

    def tables():
        seen = world.seen()
        rows = {
            "Flower": tuple(page.flower(seen["waits", twin]) for twin in TWINS),
            "`celery inspect scheduled`": tuple(f"{world.held(twin)} in the worker's memory" for twin in TWINS),
            "RabbitMQ: unacknowledged messages of the work queue": tuple(str(unacknowledged(twin)) for twin in TWINS),
            "our exporter: `celery_dlx_waiting_messages`": ("nothing", str(world.waiting("ours"))),
        }
        return [page.outcomes(seen), page.waiting(rows)]

    if os.environ.get("DLX_WRITE_TRANSCRIPTS"):
        page.write(PAGE, tables())
    # Some tools count seconds later.
    wait_until(lambda: page.on_page(PAGE) == tables(), within=60)
    assert "".join(page.on_page(PAGE)).splitlines() == "".join(tables()).splitlines()


@pytest.mark.parametrize("twin", TWINS)
def test_flower_shows_the_state_that_celerys_events_say(world, seen, twin):
    for name in CASES:
        if seen[name, twin].flower and name != "waits":
            assert world.state_of(name, twin).state == seen[name, twin].flower["state"], name


def test_a_finished_task_has_the_same_state_in_flower_and_in_the_result_backend(seen):
    for (name, twin), it in seen.items():
        if CASES[name].ends and name not in {"expired", "revoked"}:
            assert it.flower["state"] == it.result, (name, twin)


def test_every_dead_letter_of_a_task_follows_its_failure_in_the_events(seen):
    for (name, twin), it in seen.items():
        letters = sum(count for (counter, _), count in it.metrics.items() if counter == "dead_letters")
        assert it.events["task-dead-lettered"] == letters, (name, twin)
        assert it.events["task-failed"] >= letters, (name, twin)


def test_the_time_in_a_lane_is_no_time_in_a_queue(world):
    """celery-exporter: started - max(sent, eta). It takes both from the event state, at task-started."""
    task = world.state_of("heals", "ours", until="task-started")

    due = datetime.fromisoformat(task.eta).timestamp()
    assert due - world.state_of("heals", "ours", until="task-sent").sent > 0
    assert max(task.sent, due) == due
    assert task.started >= due - 0.5  # the clocks of RabbitMQ and of Python round


def test_prometheus_joins_the_numbers_of_celery_exporter_and_ours_by_name(prometheus):
    both = 'sum by (name) (celery_task_retried_total{name=~"ours.+"} > 0)'
    ours = 'sum by (name) (celery_dlx_retries_total{name=~"ours.+"})'
    retried = {"ours.heals", "ours.exhausted", "ours.once", "ours.killed", "ours.waits"}
    eventually(lambda: {labels["name"] for labels, _ in prometheus.query(f"{both} and on (name) {ours}")} == retried)

    assert sorted((labels["name"], value) for labels, value in prometheus.query(f"{both} - on (name) {ours}")) == [
        (name, 0.0) for name in sorted(retried)
    ]
    failed = 'sum by (name, exception) (celery_task_failed_total{name=~"ours.+",exception!=""} > 0)'
    dead = 'sum by (name, exception) (celery_dlx_dead_letters_total{name=~"ours.+"})'
    joined = {labels["name"] for labels, _ in prometheus.query(f"{failed} - on (name, exception) {dead} == 0")}
    assert joined == {"ours.exhausted", "ours.fails", "ours.member", "ours.soft", "ours.hard"}


def test_the_exporters_count_the_letters_and_the_retry_that_waits(prometheus):
    eventually(lambda: prometheus.value("sum(celery_dlx_waiting_messages)") == 1, within=60)
    eventually(
        lambda: (
            prometheus.value('celery_dlx_dead_letter_messages{queue_name="ours"}')
            == prometheus.value("sum(celery_dlx_dead_letters_total)")
            == 7
        ),
        within=60,
    )


def test_celery_exporter_asks_for_no_message(world):
    with urlopen(f"http://{LOOPBACK}:{world.exporter_port}/metrics", timeout=30) as answer:
        text = answer.read().decode()

    assert re.search(r'^celery_queue_length\{queue_name="ours"\} 0\.0$', text, re.MULTILINE)
    assert ".dead" not in text
