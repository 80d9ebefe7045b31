"""What the adapter for OpenTelemetry counts, and what a process without OpenTelemetry pays."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from celery_dlx_retry import events
from celery_dlx_retry.contrib.opentelemetry import attributes
from celery_dlx_retry.contrib.opentelemetry.installation import FLUSH_SECONDS
from celery_dlx_retry.contrib.opentelemetry.metrics import Metrics
from celery_dlx_retry.errors import Nacked
from celery_dlx_retry.values.label_values import MOST_EXCEPTIONS, MOST_NAMES, MOST_QUEUES

RUN = {"task": "shop.charge", "task_id": "7", "queue": "orders"}
WORKER = {"worker": "celery@here"}
PAGE = (Path(__file__).parents[2] / "docs" / "tracing.md").read_text()
HIDE = "import sys; sys.modules['opentelemetry'] = None\n"


@pytest.fixture
def reader():
    return InMemoryMetricReader()


@pytest.fixture
def metrics(reader):
    provider = MeterProvider([reader])
    yield Metrics(provider.get_meter("test"))
    provider.shutdown()


def points(reader):
    found = reader.get_metrics_data()
    scopes = [scope for resource in (found.resource_metrics if found else ()) for scope in resource.scope_metrics]
    return {
        metric.name: [(dict(it.attributes), it) for it in metric.data.data_points]
        for scope in scopes
        for metric in scope.metrics
    }


class Recorder:
    """A meter that notes what it was asked for."""

    def __init__(self):
        self.made = {}

    def create_counter(self, name, unit, meaning):
        self.made[name] = ("counter", unit, meaning)

    def create_histogram(self, name, unit, meaning, **_):
        self.made[name] = ("histogram", unit, meaning)


def test_the_page_has_every_metric_with_its_type_unit_and_meaning():
    meter = Recorder()
    Metrics(meter)
    section = PAGE.partition("## The metrics\n")[2].partition("\n## ")[0]

    rows = re.findall(r"^\| `(\S+)` \| (\w+) \| `(\S+)` \| (.+) \|$", section, re.MULTILINE)
    assert {name: tuple(facts) for name, *facts in rows} == meter.made
    assert f"at most {MOST_NAMES} task names, {MOST_QUEUES} queues and {MOST_EXCEPTIONS} classes of errors" in section


def test_the_page_has_every_attribute_of_a_span():
    table = PAGE.partition("| attribute | on | value |\n")[2].partition("\n\n")[0]
    ours = {value for name, value in vars(attributes).items() if name.isupper() and isinstance(value, str)}

    on_page = set(re.findall(r"^\| `(\S+)` \|", table, re.MULTILINE))
    assert on_page == ours - {attributes.WAY, attributes.LINK, attributes.OPERATION_DURATION}
    assert f"`{attributes.LINK}`" in PAGE
    assert f"{FLUSH_SECONDS:g} seconds" in PAGE


def dead(**facts):
    base = {"reason": "failed", "attempts": 1, "group": "3d666e04", "error_type": "ValueError", "error": "text"}
    return events.DeadLettered(**{**RUN, **WORKER, **base, **facts})


def python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)


def test_each_event_is_counted_under_the_name_of_the_work_queue(metrics, reader):
    metrics(
        events.RetryScheduled(
            **RUN, **WORKER, retry=1, delay_ms=5000, error_type="OSError", error="OSError: x", way="grid", confirm_ms=2
        )
    )
    metrics(dead(confirm_ms=30))
    metrics(events.Recovered(**RUN, **WORKER, attempts=2, first_failed_at_ms=1))
    metrics(events.Parked(**RUN, **WORKER, delay_ms=1))
    metrics(events.GivenBack(**RUN, **WORKER, problem=Nacked(exchange="x", routing_key="orders")))
    metrics(events.Replayed(**RUN, dead_letter_queue="orders.dead"))
    metrics(events.Purged(dead_letter_queue="orders.dead", count=3))
    metrics(events.Edited(task="shop.charge", task_id="7", dead_letter_queue="orders.dead"))
    metrics(events.BreakerChanged(task="shop.charge", state="open", interval_ms=1, per_interval=1))
    found = points(reader)

    queue = {"messaging.system": "rabbitmq", "messaging.destination.name": "orders"}
    task = {**queue, "celery.task_name": "shop.charge"}
    counts = {
        "retries": {**task, "error.type": "OSError", "celery.dlx.way": "grid"},
        "dead_letters": {**task, "error.type": "ValueError", "celery.dlx.reason": "failed"},
        "recovered": task,
        "parked": task,
        "given_back": {**task, "error.type": "Nacked"},
        "replayed": task,
    }
    for name, expected in counts.items():
        assert [(facts, it.value) for facts, it in found[f"celery.dlx.{name}"]] == [(expected, 1)]
    ((facts, purged),) = found["celery.dlx.purged"]
    assert (facts["messaging.destination.name"], purged.value) == ("orders.dead", 3)
    ((facts, delay),) = found["celery.dlx.retry.delay"]
    assert (facts, delay.sum) == (task, 5)
    durations = {
        facts["messaging.operation.name"]: it.sum for facts, it in found["messaging.client.operation.duration"]
    }
    assert durations == {"retry": pytest.approx(0.002), "dead-letter": pytest.approx(0.03)}
    assert len(found) == 11


def test_ten_thousand_texts_ids_classes_and_unknown_tasks_make_a_bounded_number_of_series(metrics, reader):
    for number in range(10_000):
        metrics(dead(task_id=str(number), error=f"text {number}"))
        metrics(dead(error_type=f"Error{number}"))
        metrics(dead(task=f"hostile.{number}\ud800", reason="unknown-task", error_type="NotRegistered"))

    found = points(reader)["celery.dlx.dead_letters"]
    assert len(found) <= 103
    assert "hostile" not in str(found)
    assert "text 1" not in str(found)


def test_without_opentelemetry_the_package_imports_nothing_of_it_and_a_worker_module_neither():
    code = "from celery_dlx_retry import *; import celery_dlx_retry.worker.bootstep, celery_dlx_retry.cli.main, sys\n"

    done = python(f"{code}print([it for it in sys.modules if it.startswith('opentelemetry')])")

    assert done.stdout == "[]\n", done.stderr


def test_without_the_extra_the_import_says_what_to_install():
    done = python(HIDE + "import celery_dlx_retry.contrib.opentelemetry")

    assert "pip install 'celery-dlx-retry[otel]'" in done.stderr.splitlines()[-1]


def test_without_the_sdk_install_works_and_can_be_called_twice():
    code = "import sys; sys.modules['opentelemetry.sdk'] = None\n"
    code += "from celery_dlx_retry.contrib.opentelemetry import install\ninstall()\ninstall()\n"

    done = python(f"{code}from celery import signals\nprint(len(signals.task_prerun.receivers))")

    assert (done.stdout, done.stderr) == ("1\n", "")


def test_a_writer_that_fails_costs_no_header_and_is_logged_once(monkeypatch, caplog):
    monkeypatch.setattr(events, "_writers", ())
    monkeypatch.setattr(events, "_failed", set())

    def fail(message):
        raise RuntimeError(message.kind)

    events.write_headers(fail)
    events.write_headers(fail)
    events.write_headers(lambda message: {"dlx-mine": message.queue})
    facts = {"kind": "retry", "task": "t", "task_id": "7", "queue": "orders", "attempts": 1}

    for _ in range(2):
        assert events.with_written_headers({"a": 1}, **facts) == {"a": 1, "dlx-mine": "orders"}
    assert [it.getMessage()[:13] for it in caplog.records] == ["header writer"]


@pytest.mark.parametrize(
    "wrong",
    [{"mine": "x"}, {"dlx-x": 5}, {"dlx-x": "\ud800"}, {"dlx-x": "x" * 500}, {5: "x"}, {b"dlx-x": "x"}, None, 5],
)
def test_what_a_message_cannot_carry_is_not_added(monkeypatch, caplog, wrong):
    monkeypatch.setattr(events, "_writers", ())
    monkeypatch.setattr(events, "_failed", set())
    events.write_headers(lambda _: wrong)
    facts = {"kind": "retry", "task": "t", "task_id": "7", "queue": "orders", "attempts": 1}

    assert events.with_written_headers({"a": 1}, **facts) == {"a": 1}
    assert len(caplog.records) == 1


def test_without_a_writer_the_headers_are_the_same_object(monkeypatch):
    monkeypatch.setattr(events, "_writers", ())
    monkeypatch.setattr(events, "_failed", set())
    headers = {"a": 1}

    assert events.with_written_headers(headers, kind="retry") is headers
