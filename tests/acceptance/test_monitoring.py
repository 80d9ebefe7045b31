"""The exporter, the shipped alerts and dashboard, and the page, with a real worker, RabbitMQ and Prometheus."""

from __future__ import annotations

import json
import re
import secrets
import signal
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

import pytest
from harness import Project
from kombu.connection import Connection
from support import eventually, put

from celery_dlx_retry.testing.local_node import started
from celery_dlx_retry.testing.sandbox import LOOPBACK, free_ports
from tests.acceptance.commandline import CommandLine, invoke
from tests.prometheus import find_prometheus, prometheus_program, run_prometheus
from tests.provision.node import PrivateNode, find_scripts

__all__ = ["prometheus_program"]

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "monitoring.md").read_text()
ALERTS = DOCS / "monitoring" / "alerts.yml"
DASHBOARD = json.loads((DOCS / "monitoring" / "dashboard.json").read_text())
#: What does not happen in this run: a breaker, a refused publish, and what operators do in processes of their own.
QUIET = (
    "parked_total", "given_back_total", "replayed_total", "purged_total", "edited_total", "breaker_state",
    "budget_remaining_ratio", "doctor_findings",
)  # fmt: skip


class NodeWithMetrics(PrivateNode):
    """A RabbitMQ with rabbitmq_prometheus, as the page sets it up."""

    def serve_metrics(self) -> None:
        self.metrics_port = self._ports[4]
        with (self._sandbox.path / "rabbitmq.conf").open("a") as conf:
            conf.write(f"prometheus.tcp.port = {self.metrics_port}\nprometheus.tcp.ip = {LOOPBACK}\n")
            conf.write("prometheus.return_per_object_metrics = true\n")
        (self._sandbox.path / "enabled_plugins").write_text("[rabbitmq_management,rabbitmq_prometheus].\n")
        self._hand_over()


@pytest.fixture(scope="module")
def node():
    def make():
        it = NodeWithMetrics(find_scripts())
        it.serve_metrics()
        return it

    with started(make, PrivateNode.start) as it:
        yield it


class Exporter:
    """`celery dlx exporter` as a process."""

    def __init__(self, process, log):
        self._process, self._log = process, log
        line = eventually(lambda: re.search(r"Metrics at (http://\S+)/metrics", self.log()))
        self.url = line[1]

    def log(self):
        assert self._process.poll() is None, self._log.read_text()
        return self._log.read_text()

    def values(self):
        """Each series with its value."""
        with urlopen(f"{self.url}/metrics", timeout=10) as answer:  # noqa: S310 - our own
            lines = answer.read().decode().splitlines()
        return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}

    def end(self):
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(20)


class World:
    """A project with a worker and an exporter, which a Prometheus scrapes."""

    def __init__(self, node, redis_url, folder):
        self.node, self._folder = node, folder
        self.prefix = "dlx"
        self.project = Project(url=node.url, backend=redis_url, prefix=self.prefix, folder=folder)
        self.project.queue = self.project.conf["task_default_queue"] = "orders"
        (self.worker_port,) = free_ports(1)
        self.worker = self.project.start("--dlx-metrics-port", str(self.worker_port))
        self.worker.wait_until_ready()
        self.exporter = self.export("--interval", "0.2", "--check-interval", "0.5")

    def export(self, *options):
        dlx = CommandLine(self.project, self.node)
        log = self._folder / f"exporter-{secrets.token_hex(3)}.log"
        with log.open("w") as out:
            process = subprocess.Popen(
                dlx.command("exporter", "--port", "0", *options),
                env=dlx.environment(),
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        return Exporter(process, log)

    @property
    def targets(self):
        return {
            "worker": [f"{LOOPBACK}:{self.worker_port}"],
            "exporter": [self.exporter.url.partition("//")[2]],
            "rabbitmq": [f"{LOOPBACK}:{self.node.metrics_port}"],
        }

    def close(self):
        self.exporter.end()
        self.project.close()


@pytest.fixture(scope="module")
def world(node, redis_url, tmp_path_factory):
    it = World(node, redis_url, tmp_path_factory.mktemp("monitoring"))
    try:
        yield it
    finally:
        it.close()


@pytest.fixture(scope="module")
def prometheus(world, prometheus_program):
    """It has scraped a run with retries, recovered tasks and dead letters."""
    with run_prometheus(prometheus_program, world.targets, rules=[ALERTS]) as it:
        eventually(lambda: it.value('up{job="worker"}') == 1)
        for _ in range(4):
            world.project.send("heal", 1, 1)
            world.project.send("fail")
        for _ in range(3):
            world.project.send("heal", 1, 600)
        eventually(lambda: it.value("sum(celery_dlx_dead_letter_messages)") == 4, within=40)
        eventually(lambda: it.value("sum(celery_dlx_waiting_messages)") == 3, within=40)
        eventually(lambda: (it.value("sum(celery_dlx_recovered_total)") or 0) == 4, within=40)
        # rate() needs a series before and after it grows.
        world.project.send("heal", 1, 1)
        world.project.send("fail")
        eventually(lambda: it.value("sum(celery_dlx_recovered_total)") == 5, within=40)
        eventually(lambda: it.value("sum(increase(celery_dlx_recovered_total[1m]))"), within=40)
        yield it


def waiting_in(found):
    return {series: value for series, value in found.items() if series.startswith("celery_dlx_waiting") and value}


def test_the_exporter_counts_what_is_in_the_queues_of_a_real_run(world, prometheus):
    def settled():
        it = world.exporter.values()  # of the HTTP API, which counts every few seconds
        return it.get('celery_dlx_dead_letter_messages{queue_name="orders"}') == 5 and len(waiting_in(it)) == 1 and it

    found = eventually(settled)

    assert prometheus.value("celery_dlx_up") == 1
    assert found["celery_dlx_management_up"] == 1
    assert found["celery_dlx_orphan_messages"] == 0
    assert found["celery_dlx_missing_objects"] == 0
    assert found['celery_dlx_work_queue_consumers{queue_name="orders"}'] == 1
    waiting = waiting_in(found)
    assert list(waiting.values()) == [3]
    assert 'queue_name="orders"' in str(waiting)
    assert all(found[series] == 0 for series in found if "overdue" in series)
    (info,) = [series for series in found if series.startswith("celery_dlx_info")]
    assert f'broker_version="{world.node.version}"' in info


@pytest.mark.parametrize("panel", DASHBOARD["panels"], ids=lambda panel: panel["title"])
def test_every_query_of_the_dashboard_is_answered(prometheus, panel):
    for target in panel["targets"]:
        query = target["expr"].replace("$__rate_interval", "1m").replace("$queue", ".*")

        found = prometheus.query(query)

        is_quiet = any(f"celery_dlx_{name}" in query for name in QUIET)
        assert found or is_quiet, query


def test_prometheus_takes_every_shipped_rule(prometheus):
    groups = eventually(lambda: prometheus.api("rules")["groups"])
    rules = eventually(
        lambda: (
            (found := prometheus.api("rules")["groups"][0]["rules"])
            and all(it["health"] != "unknown" for it in found)
            and found
        )
    )

    assert [group["name"] for group in groups] == ["celery-dlx-retry"]
    assert {it["health"] for it in rules} == {"ok"}
    assert len(rules) == 12


# --- the page ---


def queries():
    return re.findall(r"```promql\n(.*?)\n```", PAGE, re.DOTALL)


def test_the_queries_of_the_page_find_what_they_say(prometheus):
    dead, waiting, orphans, idle, unroutable = queries()

    assert eventually(lambda: prometheus.query(dead) == [({"queue": "orders.dead"}, 5.0)])
    assert eventually(lambda: prometheus.value(waiting) == 3)
    assert prometheus.query(orphans) == []
    assert prometheus.query(idle) == []
    assert prometheus.query(unroutable) == []


def test_each_connection_of_a_worker_has_one_returned_message_and_the_alert_ignores_it(prometheus):
    # A worker that has published on its connections, and nothing that went wrong.
    returned = prometheus.value("sum(rabbitmq_global_messages_unroutable_returned_total)")
    opened = prometheus.value("sum(rabbitmq_connections_opened_total)")

    assert 0 < returned <= opened
    assert "rabbitmq_connections_opened_total" in queries()[-1]


def test_while_somebody_looks_ready_falls_and_our_count_stays(world, prometheus):
    dead = "orders.dead"
    ready = f'rabbitmq_queue_messages_ready{{queue="{dead}"}}'
    eventually(lambda: prometheus.value(ready) == 5)
    with Connection(world.node.url) as connection:
        assert all(connection.default_channel.basic_get(dead) for _ in range(5))

        eventually(lambda: prometheus.value(ready) == 0, within=30)

        assert prometheus.value(f'rabbitmq_queue_messages{{queue="{dead}"}}') == 5
        # Our exporter reads the HTTP API, whose counts are some seconds old.
        eventually(lambda: prometheus.value("sum(celery_dlx_dead_letter_messages)") == 5, within=30)


def test_the_table_of_the_page_has_every_metric_with_its_labels():
    from celery_dlx_retry.contrib.prometheus_collector import metrics  # noqa: PLC0415

    section = PAGE.partition("## The exporter\n")[2]
    rows = re.findall(r"^\| `(celery_dlx_\w+)` \| ([\w, ]*?) ?\|", section, re.MULTILINE)

    assert dict(rows) == {it.name: ", ".join(it._labelnames) for it in metrics()}


def test_the_table_of_the_page_has_every_alert():
    assert set(re.findall(r"^\| `(CeleryDlx\w+)`", PAGE, re.MULTILINE)) == set(
        re.findall(r"- alert: (\w+)", ALERTS.read_text())
    )


def test_promtool_answers_as_the_page_says(say):
    promtool = find_prometheus(say, program="promtool")

    done = subprocess.run(
        [promtool, "check", "rules", ALERTS.name], cwd=ALERTS.parent, capture_output=True, text=True, check=True
    )

    (shown,) = re.findall(r"\$ promtool check rules alerts.yml\n(.*?)```", PAGE, re.DOTALL)
    assert done.stdout.strip() == shown.strip()


# --- the alerts, on the series of this run ---


def recorded(prometheus):
    """Every series of ours with its value."""
    found = {}
    for labels, value in prometheus.query('{__name__=~"celery_dlx_.+",job=~"worker|exporter"}'):
        name = labels.pop("__name__")
        found[name + "{" + ",".join(f'{key}="{text}"' for key, text in sorted(labels.items())) + "}"] = value
    return found


def firing(promtool, folder, series, *, minutes):
    """The alerts that fire after these minutes."""
    test = {
        "rule_files": [str(ALERTS)],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": key, "values": values} for key, values in series.items()],
                "promql_expr_test": [
                    {
                        "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
                        "eval_time": f"{minutes}m",
                        "exp_samples": [],
                    }
                ],
            }
        ],
    }
    path = folder / "test.yml"
    path.write_text(json.dumps(test))
    done = subprocess.run([promtool, "test", "rules", str(path)], capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr
    assert done.returncode == 0 or "exp:" in said, said
    return set(re.findall(r'alertname=\\*"CeleryDlx(\w+?)\\*"', said))


def steady(series, minutes):
    return {key: f"{value:g}x{minutes}" for key, value in series.items()}


def changed(series, minutes, **changes):
    """The same series; those of these metrics get other values."""
    values = steady(series, minutes)
    for name, text in changes.items():
        keys = [key for key in values if key.startswith(f"celery_dlx_{name}{{")]
        assert keys, name
        values |= dict.fromkeys(keys, text)
    return values


@pytest.fixture(scope="module")
def promtool(say):
    return find_prometheus(say, program="promtool")


def test_a_healthy_run_fires_no_alert(prometheus, promtool, tmp_path):
    assert firing(promtool, tmp_path, steady(recorded(prometheus), 60), minutes=60) == set()


@pytest.mark.parametrize(
    ("alert", "changes", "minutes"),
    [
        ("ExporterDown", {"up": "0x60"}, 5),
        ("DeadLettersGrowing", {"dead_letter_messages": "5x10 6+1x50"}, 30),
        ("Orphans", {"orphan_messages": "2x60"}, 5),
        ("MissingObjects", {"missing_objects": "1x60"}, 5),
        ("NoConsumers", {"work_queue_consumers": "0x60"}, 10),
        ("LaneOverdue", {"lane_overdue_seconds": "90x60"}, 5),
        ("RetryStorm", {"retries_total": "0+60x60"}, 30),
        ("DeadLetterOld", {"dead_letter_messages": "5x1600"}, 1500),
    ],
)
def test_an_alert_fires_alone(  # noqa: PLR0913, PLR0917 - fixtures and parameters
    prometheus, promtool, tmp_path, alert, changes, minutes
):
    series = changed(recorded(prometheus), minutes + 30, **changes)

    assert firing(promtool, tmp_path, series, minutes=minutes) == {alert}


@pytest.mark.parametrize(
    ("alert", "series"),
    [
        ("GivenBack", 'celery_dlx_given_back_total{name="t",queue_name="orders",cause="Nacked"}'),
        ("BreakerOpen", 'celery_dlx_parked_total{name="t",queue_name="orders"}'),
        ("Unroutable", 'rabbitmq_global_messages_unroutable_returned_total{node="a"}'),
    ],
)
def test_an_alert_on_a_counter_fires_when_it_grows(prometheus, promtool, tmp_path, alert, series):
    more = {series: "0+3x60", 'rabbitmq_connections_opened_total{node="a"}': "5+0x60"}

    assert firing(promtool, tmp_path, steady(recorded(prometheus), 60) | more, minutes=40) == {alert}


def test_as_many_returned_messages_as_new_connections_fire_nothing(prometheus, promtool, tmp_path):
    more = {
        'rabbitmq_global_messages_unroutable_returned_total{node="a"}': "0+3x60",
        'rabbitmq_connections_opened_total{node="a"}': "0+3x60",
    }

    assert firing(promtool, tmp_path, steady(recorded(prometheus), 60) | more, minutes=40) == set()


# --- what an operator sees ---


def test_a_port_that_is_taken_is_one_sentence(world):
    port = world.exporter.url.rpartition(":")[2]
    dlx = CommandLine(world.project, world.node)
    try:
        said = dlx("exporter", "--port", port, code=1)
    finally:
        dlx.close()

    assert said == f"Error: Cannot serve on 127.0.0.1:{port}: Address already in use.\n"


def test_without_the_extra_the_command_names_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)

    done = invoke("dlx", "exporter", "--port", "0")

    assert done.exit_code == 1
    assert done.output.endswith("Error: Install the extra: pip install 'celery-dlx-retry[prometheus]'.\n")


def test_orphans_and_missing_queues_are_seen_in_a_real_run(world, prometheus):
    with Connection(world.node.url) as connection:
        connection.default_channel.exchange_delete("dlx.v1.dead")
    put(world.node.url, range(2), routing_key="dlx.v1.orphans.quorum")

    eventually(lambda: prometheus.value("celery_dlx_missing_objects") == 1)
    eventually(lambda: prometheus.value("celery_dlx_orphan_messages") == 2)


def test_a_broker_that_is_down_is_one_line_and_the_exporter_recovers(world):
    world.node.stop()
    eventually(lambda: world.exporter.values().get("celery_dlx_up") == 0, within=40)
    for _ in range(3):
        down = world.exporter.values()
    world.node.start()

    assert down.keys() & {"celery_dlx_orphan_messages", "celery_dlx_missing_objects"} == set()
    eventually(lambda: world.exporter.values().get("celery_dlx_orphan_messages"), within=60)
    log = world.exporter.log()
    assert log.count("cannot read the broker") == 1
    assert log.count("reads the broker again") == 1
    assert "Traceback" not in log
