"""The metrics of a real worker, over HTTP and in a real Prometheus; hooks that fail cost no message."""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.request import urlopen

import pytest
from kombu.connection import Connection
from prometheus import prometheus, prometheus_program
from prometheus_client.parser import text_string_to_metric_families
from support import eventually

from celery_dlx_retry.testing.sandbox import free_ports

__all__ = ["prometheus", "prometheus_program"]

POOLS = ["prefork", "solo", "threads", "gevent"]
UNKNOWN = 5
HELD = 4
PAGE = (Path(__file__).parents[2] / "docs" / "monitoring.md").read_text()
QUERIES = re.search(r"### What to ask\n\n```text\n(.*?)```", PAGE, re.DOTALL)[1].split("\n\n")


@pytest.fixture
def port():
    (port,) = free_ports(1)
    return port


@pytest.fixture
def policy(broker, prefix):
    """Set a policy on queues of this test, and take it off again."""
    yield lambda pattern, definition: broker.ctl("set_policy", prefix, pattern, definition, "--apply-to", "queues")
    broker.ctl("clear_policy", prefix)


def scraped(port):
    """Return every sample: ``{(name, ((label, value), …)): number}``."""
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    families = text_string_to_metric_families(text)
    return {(it.name, tuple(sorted(it.labels.items()))): it.value for found in families for it in found.samples}


def total(samples, metric, /, **labels):
    return sum(
        value for (found, of), value in samples.items() if found == f"celery_dlx_{metric}" and labels.items() <= set(of)
    )


def send_all(project):
    """Send tasks whose numbers are known."""
    for _ in range(3):
        project.app.send_task("metrics.flaky", (2,))
    for _ in range(2):
        project.app.send_task("metrics.changed", (2,))
        project.app.send_task("metrics.quiet", (1,))
        project.app.send_task("metrics.doomed")
    project.app.send_task("metrics.rejected")
    for number in range(UNKNOWN):
        project.app.send_task(f'hostile"\n{{}}\\{number}')


@pytest.mark.parametrize("pool", POOLS)
def test_the_numbers_are_right_in_every_pool(project, port, pool):
    with project.worker("--dlx-metrics-port", str(port), module="project_metrics", pool=pool, concurrency=1):
        send_all(project)
        eventually(lambda: len(project.dead()) == 3 + UNKNOWN, within=30)
        eventually(lambda: total(scraped(port), "recovered_total") >= 7, within=30)
        samples = scraped(port)

    retries = {
        exception: total(samples, "retries_total", name=f"metrics.{name}", exception=exception, way="lane")
        for name, exception in (
            *(("flaky", "TimeoutError"), ("changed", "ValueError")),
            *(("quiet", "KeyError"), ("doomed", "ConnectionError")),
        )
    }
    assert retries == {"TimeoutError": 6, "ValueError": 4, "KeyError": 2, "ConnectionError": 2}
    assert total(samples, "retries_total", queue_name=project.queue) == 14
    assert total(samples, "recovered_total") == total(samples, "attempts_count", end="succeeded") == 7
    assert total(samples, "recovery_seconds_count") == 7
    dead = {reason: total(samples, "dead_letters_total", reason=reason) for reason in ("exhausted", "rejected")}
    assert dead == {"exhausted": 2, "rejected": 1}
    assert total(samples, "dead_letters_total", name="unknown", reason="unknown-task") == UNKNOWN
    assert total(samples, "dead_letters_total") == total(samples, "attempts_count", end="dead") == 3 + UNKNOWN
    assert total(samples, "retry_delay_seconds_count") == total(samples, "return_lateness_seconds_count") == 14
    assert total(samples, "return_lateness_seconds_bucket", le="600.0") == 14
    assert total(samples, "confirm_seconds_count") == 14 + 3 + UNKNOWN


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_parked_messages_are_counted(project, port, pool):
    with project.worker("--dlx-metrics-port", str(port), module="project_metrics", pool=pool, concurrency=1):
        for _ in range(HELD):
            project.app.send_task("metrics.held")

        def all_of_them():
            samples = scraped(port)
            dead = total(samples, "dead_letters_total", name="metrics.held")
            return dead + total(samples, "parked_total", name="metrics.held") == HELD

        eventually(all_of_them)
        samples = scraped(port)

    assert total(samples, "parked_total", queue_name=project.queue) >= HELD - 2


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_breakers_and_budgets_are_gauges_of_the_main_process(project, port, pool):
    def gauge(name, task):
        return scraped(port).get((f"celery_dlx_{name}", (("name", task),)))

    with project.worker("--dlx-metrics-port", str(port), module="project_metrics", pool=pool, concurrency=1):
        assert gauge("breaker_state", "metrics.trips") is None
        assert project.app.send_task("metrics.spends", (2,)).get(timeout=20) is None
        eventually(lambda: gauge("budget_remaining_ratio", "metrics.spends") == 0.5)
        for _ in range(2):
            project.app.send_task("metrics.spends", (0,))
        eventually(lambda: gauge("budget_remaining_ratio", "metrics.spends") == 0.75)

        project.app.send_task("metrics.trips", (True,))
        eventually(lambda: gauge("breaker_state", "metrics.trips") == 2)
        for _ in range(3):
            project.app.send_task("metrics.trips", (False,))
        eventually(
            lambda: project.app.send_task("metrics.trips", (False,)) and not gauge("breaker_state", "metrics.trips"),
            within=30,
        )


def test_a_pool_process_that_has_ended_takes_its_open_breaker_with_it(project, port):
    flags = ("--dlx-metrics-port", str(port), "--max-tasks-per-child", "1")
    with project.worker(*flags, module="project_metrics", concurrency=1):
        project.app.send_task("metrics.trips", (True,))
        eventually(lambda: ("celery_dlx_breaker_state", (("name", "metrics.trips"),)) in scraped(port))

        eventually(lambda: scraped(port)["celery_dlx_breaker_state", (("name", "metrics.trips"),)] == 0)


def test_given_back_deliveries_are_counted_with_their_cause(project, port, policy):
    project.conf["dlx_queue_type"] = "classic"
    policy(f"^{project.names.dead_letters(project.queue)}$", '{"max-length": 0, "overflow": "reject-publish"}')
    with project.worker("--dlx-metrics-port", str(port), module="project_metrics"):
        project.app.send_task("metrics.rejected")
        eventually(lambda: total(scraped(port), "given_back_total", name="metrics.rejected", cause="Nacked") >= 2)

        assert total(scraped(port), "dead_letters_total") == 0


def test_exception_classes_texts_and_ids_make_no_unbounded_series(project, port):
    with project.worker("--dlx-metrics-port", str(port), module="project_metrics"):
        for number in range(300):
            project.app.send_task("metrics.many", (number,))
            project.app.send_task(f"unknown.{number}")
        samples = eventually(lambda: (it := scraped(port)) and total(it, "dead_letters_total") == 600 and it, within=60)

    series = [labels for name, labels in samples if name == "celery_dlx_dead_letters_total"]
    names = {dict(labels)["name"] for labels in series}
    assert names == {"metrics.many", "unknown"}
    assert len(series) <= 102
    assert total(samples, "dead_letters_total", exception="other") >= 200


def test_processes_that_replace_others_are_counted_and_do_not_hold_the_port(project, port):
    flags = ("--dlx-metrics-port", str(port), "--max-tasks-per-child", "1")
    with project.worker(*flags, module="project_metrics"):
        for _ in range(6):
            project.app.send_task("metrics.doomed")
        eventually(lambda: total(scraped(port), "dead_letters_total", reason="exhausted") == 6, within=40)
        assert total(scraped(port), "retries_total") == 6


def test_a_registry_of_the_app_gets_the_metrics_of_the_pool(project, port, monkeypatch):
    monkeypatch.setenv("PROJECT_HOOKS", "install")
    monkeypatch.setenv("PROJECT_PORT", str(port))
    with project.worker(module="project_metrics"):
        project.app.send_task("metrics.doomed")
        eventually(lambda: total(scraped(port), "dead_letters_total") == 1)

        assert total(scraped(port), "retries_total") == 1


def test_a_port_that_is_taken_is_one_sentence_and_no_worker(project, port):
    with project.worker("--dlx-metrics-port", str(port), module="project_metrics"):
        second = project.start("--dlx-metrics-port", str(port), module="project_metrics")
        assert second.process.wait(30) == 1

    said = f"Error: The metrics cannot be served on --dlx-metrics-port {port}: Address already in use."
    assert said in second.log
    assert "Traceback" not in second.log


def test_without_the_extra_the_worker_says_what_to_install(project, port, tmp_path, monkeypatch):
    package = tmp_path / "missing" / "prometheus_client"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise ModuleNotFoundError('No module named prometheus_client')\n")
    monkeypatch.setenv("PYTHONPATH", f"{package.parent}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")

    worker = project.start("--dlx-metrics-port", str(port), module="project_metrics")

    assert worker.process.wait(30) == 1
    assert "pip install 'celery-dlx-retry[prometheus]'" in worker.log
    assert "Traceback" not in worker.log


def test_a_real_prometheus_scrapes_the_worker_and_answers_queries(project, port, prometheus):
    target = f"127.0.0.1:{port}"
    with (
        project.worker("--dlx-metrics-port", str(port), module="project_metrics"),
        prometheus({"worker": [target]}) as server,
    ):
        send_all(project)
        eventually(lambda: server.value("sum(celery_dlx_recovered_total)") == 7, within=60)
        eventually(lambda: server.value("sum(celery_dlx_dead_letters_total)") == 3 + UNKNOWN, within=60)

        assert server.value("sum(celery_dlx_retries_total)") == 14
        assert server.value('sum(celery_dlx_dead_letters_total{name="unknown"})') == UNKNOWN
        late = "histogram_quantile(0.99, sum by (le) (celery_dlx_return_lateness_seconds_bucket))"
        assert 0 <= server.value(late) <= 600
        for query in QUERIES:
            server.query(query)  # raises if Prometheus does not understand it
        assert server.value(f'up{{instance="{target}"}}') == 1


@pytest.mark.parametrize("pool", POOLS)
def test_a_hook_that_raises_costs_no_message_also_without_a_task(project, pool, monkeypatch):
    monkeypatch.setenv("PROJECT_HOOKS", "raise")
    with project.worker(module="project_metrics", pool=pool, concurrency=1) as worker:
        healed = project.app.send_task("metrics.flaky", (2,))
        project.app.send_task("metrics.doomed")
        project.app.send_task("metrics.unknown")
        with Connection(project.url) as connection:
            producer = connection.Producer()
            producer.publish(
                b"\xff", routing_key=project.queue, content_type="application/json", content_encoding="utf-8"
            )
            producer.publish({"no": "task"}, routing_key=project.queue, serializer="json")

        assert healed.get(timeout=20) is None
        eventually(lambda: len(project.dead()) == 4)
        log = worker.log

    for hook in (
        "RetryScheduled of 'metrics.flaky'",
        "Recovered of 'metrics.flaky'",
        "DeadLettered of 'metrics.doomed'",
    ):
        assert f"hook {hook}" in log
    assert log.count("hook DeadLettered of ''") == 2
    assert "hook DeadLettered of 'metrics.unknown'" in log
    for broken in ("Panic: a subscriber at", "Panic: a subscriber in the main process at", "the registry is full"):
        assert log.count(broken) >= 1
    assert project.depth(project.queue) == 0


#: The event whose subscriber ends the process, and the task; which process it is depends on the pool.
ENDINGS = [("RetryScheduled", "flaky"), ("DeadLettered", "rejected"), ("Recovered", "flaky")]


@pytest.mark.parametrize("pool", ["prefork", "solo", "threads"])
@pytest.mark.parametrize(("event", "task"), ENDINGS)
def test_a_hook_that_ends_its_process_costs_no_message(project, pool, event, task, monkeypatch):
    monkeypatch.setenv("PROJECT_HOOKS", "exit")
    monkeypatch.setenv("PROJECT_EXIT", event)
    workers = [project.start(module="project_metrics", pool=pool, concurrency=1).wait_until_ready()]
    result = project.app.send_task(f"metrics.{task}", (1,) if task == "flaky" else ())
    eventually(lambda: project.records_file.read_text() == "ended\n", within=30)

    def settled():
        if not workers[-1].is_alive:  # as a supervisor would
            workers.append(project.start(module="project_metrics", pool=pool, concurrency=1))
        # An AsyncResult keeps the first final state that it sees, and a thread that ends is one.
        state = project.app.AsyncResult(result.id).status
        return state == "SUCCESS" if task == "flaky" else project.dead()

    eventually(settled, within=60)
    eventually(lambda: project.depth(project.queue) == 0)
