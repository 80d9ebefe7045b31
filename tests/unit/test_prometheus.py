"""Every metric is on the page, and no input makes more series than the page says."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from celery_dlx_retry import events
from celery_dlx_retry.contrib.prometheus import MOST_EXCEPTIONS, MOST_NAMES, MOST_QUEUES, Metrics
from celery_dlx_retry.errors import Nacked

PAGE = (Path(__file__).parents[2] / "docs" / "monitoring.md").read_text()
SECTION = PAGE.partition("## Metrics of the worker\n")[2].partition("\n## ")[0]
RUN = {"task": "shop.charge", "task_id": "7", "queue": "orders"}
WORKER = {"worker": "celery@here"}


@pytest.fixture
def registry():
    return CollectorRegistry()


@pytest.fixture
def metrics(registry):
    return Metrics(registry)


def labels_in_code(metrics):
    return {
        (f"{it._name}_total" if it._type == "counter" else it._name): (it._type, it._labelnames, it._documentation)
        for it in vars(metrics).values()
        if hasattr(it, "_labelnames")
    }


def dead(**facts):
    base = {"reason": "failed", "attempts": 1, "group": "3d666e04", "error_type": "ValueError", "error": "text"}
    return events.DeadLettered(**{**RUN, **WORKER, **base, **facts})


def test_the_table_on_the_page_has_every_metric_with_its_type_labels_and_meaning(metrics):
    rows = re.findall(r"^\| `(celery_dlx_\w+)` \| (\w+) \| (.+?) \| (.+?) \|$", SECTION, re.MULTILINE)
    page = {name: (kind, tuple(re.findall(r"`(\w+)`", labels)), meaning) for name, kind, labels, meaning in rows}

    assert page == labels_in_code(metrics)


def test_the_queries_on_the_page_name_metrics_that_exist(metrics):
    exist = set(labels_in_code(metrics))
    names = {re.sub("_(bucket|count|sum)$", "", it) for it in re.findall(r"celery_dlx_\w+", SECTION)}

    assert names - {"celery_dlx_retry"} == exist


def test_the_limits_on_the_page_are_those_of_the_code():
    limits = f"at most {MOST_NAMES} task names, {MOST_QUEUES} queues and {MOST_EXCEPTIONS} exceptions"

    assert limits in SECTION


def test_ten_thousand_texts_ids_classes_and_unknown_tasks_make_a_bounded_number_of_series(metrics, registry):
    for number in range(10_000):
        metrics(dead(task_id=str(number), error=f"text {number}"))
    one = generate_latest(registry).count(b"celery_dlx_dead_letters_total{")
    for number in range(10_000):
        metrics(dead(error_type=f"Error{number}"))
        metrics(dead(task=f"hostile.{number}", reason="unknown-task", error_type="NotRegistered"))

    text = generate_latest(registry).decode()
    assert one == 1
    assert text.count("celery_dlx_dead_letters_total{") <= MOST_EXCEPTIONS + 2
    assert 'exception="other"' in text
    assert 'name="unknown"' in text
    assert "hostile" not in text
    assert len(text) < 100_000


def test_names_of_replayed_letters_and_queues_are_bounded_too(metrics, registry):
    for number in range(2_000):
        metrics(events.Replayed(task=f"t{number}", task_id="7", queue="orders", dead_letter_queue="orders.dead"))
        metrics(events.Purged(dead_letter_queue=f"q{number}", count=2))

    text = generate_latest(registry).decode()
    assert text.count("celery_dlx_replayed_total{") == MOST_NAMES + 1
    assert text.count("celery_dlx_purged_total{") == MOST_QUEUES  # one of them was that of the replays


def test_a_value_that_cannot_be_encoded_does_not_break_the_scrape(metrics, registry):
    metrics(dead(task="\ud800", queue='a"\n\\'))

    assert b'name="?"' in generate_latest(registry)


def test_each_event_is_counted(metrics, registry):
    metrics(
        events.RetryScheduled(
            **RUN, **WORKER, retry=1, delay_ms=5000, error_type="", error="", way="grid", confirm_ms=2.0
        )
    )
    metrics(events.Returned(**RUN, **WORKER, retry=1, delay_ms=5000, late_ms=120, way="grid"))
    metrics(events.Recovered(**RUN, **WORKER, attempts=2, first_failed_at_ms=1))
    metrics(events.Parked(**RUN, **WORKER, delay_ms=1))
    metrics(events.GivenBack(**RUN, **WORKER, problem=Nacked(exchange="x", routing_key="orders")))
    metrics(events.Replayed(**RUN, dead_letter_queue="orders.dead"))
    metrics(events.Purged(dead_letter_queue="orders.dead", count=3))
    metrics(events.Edited(task="shop.charge", task_id="7", dead_letter_queue="orders.dead"))
    metrics(events.BreakerChanged(task="shop.charge", state="open", interval_ms=1, per_interval=1))

    def value(metric, /, **labels):
        return registry.get_sample_value(f"celery_dlx_{metric}", labels)

    task = {"name": "shop.charge", "queue_name": "orders"}
    assert value("retries_total", **task, exception="none", way="grid") == 1
    assert value("retry_delay_seconds_sum", name="shop.charge") == 5
    assert value("return_lateness_seconds_sum", way="grid") == pytest.approx(0.12)
    assert value("recovered_total", **task) == value("parked_total", **task) == value("replayed_total", **task) == 1
    assert value("attempts_sum", name="shop.charge", end="succeeded") == 2
    assert value("given_back_total", **task, cause="Nacked") == 1
    assert value("purged_total", queue_name="orders.dead") == 3
    assert value("edited_total", queue_name="orders.dead") == 1
    assert value("confirm_seconds_sum") == pytest.approx(0.002)


@pytest.fixture
def gone():
    """The pid of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-S", "-c", ""])
    process.wait(30)
    return process.pid


def breaker(state, pid, task="shop.charge"):
    return events.BreakerChanged(task=task, state=state, interval_ms=1, per_interval=1, pid=pid)


def test_the_state_of_a_breaker_is_the_worst_of_the_processes_that_live(metrics, registry, gone):
    def state():
        return registry.get_sample_value("celery_dlx_breaker_state", {"name": "shop.charge"})

    assert state() is None
    metrics(breaker("open", gone))
    assert state() == 0
    metrics(breaker("half open", os.getpid()))
    metrics(breaker("closed", os.getppid()))
    assert state() == 1
    metrics(breaker("open", os.getppid()))
    assert state() == 2
    metrics(breaker("closed", os.getppid()))
    metrics(breaker("closed", os.getpid()))
    assert state() == 0


def test_what_is_left_of_a_budget_is_the_smallest_of_all_processes(metrics, registry, gone):
    for task, remaining, pid in (
        *(("shop.charge", 0.5, os.getpid()), ("shop.charge", 0.9, os.getppid()), ("shop.charge", 0.1, gone)),
        ("", 0.3, os.getpid()),
    ):
        metrics(events.BudgetChanged(task=task, remaining=remaining, pid=pid))

    left = {
        name: registry.get_sample_value("celery_dlx_budget_remaining_ratio", {"name": name})
        for name in ("shop.charge", "dlx_budget")
    }
    assert left == {"shop.charge": 0.5, "dlx_budget": 0.3}


def test_gauges_are_bounded_and_forget_processes_that_are_gone(metrics, registry, gone):
    for number in range(2_000):
        metrics(breaker("open", os.getpid(), task=f"t{number}"))
    metrics(breaker("open", gone, task="t0"))

    assert generate_latest(registry).count(b"celery_dlx_breaker_state{") == MOST_NAMES + 1
    assert len(metrics._breakers._values["t0"]) == 1
