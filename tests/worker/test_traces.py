"""The spans and metrics of real workers for OpenTelemetry: one task's life is one picture, and no message is lost."""

from __future__ import annotations

import json
import subprocess
from itertools import pairwise

import pytest
from kombu.connection import Connection
from support import eventually

from tests.workers import celery

POOLS = ["prefork", "solo", "threads"]
ONE_EACH = ("--max-tasks-per-child", "1")
FORGED = [
    "00-" + "a" * 32 + "-" + "b" * 16 + "-01,,",
    "00-" + "0" * 32 + "-" + "b" * 16 + "-01,,",
    ",," * 8_000,
    "no trace",
    5,
    None,
    ["00"],
    {"first": "1"},
]


class Span:
    """A span that a process has exported."""

    def __init__(self, line):
        it = json.loads(line)
        self.name, self.kind = it["name"], it["kind"].partition(".")[2]
        self.trace, self.id, self.parent = it["context"]["trace_id"], it["context"]["span_id"], it["parent_id"]
        self.attributes, self.status = it["attributes"], it["status"]["status_code"]
        self.links = {
            role: link["context"]["span_id"]
            for link in it["links"]
            for role in link["attributes"]["celery.dlx.link"].split(",")
        }
        self.started = it["start_time"]
        self.text = line

    def __repr__(self):
        return f"<{self.name} {self.id} of {self.parent} links {self.links} {self.status}>"


class Traces:
    """A project that traces."""

    def __init__(self, project, folder, monkeypatch):
        self.project, self._file, self._monkeypatch = project, folder / "spans", monkeypatch
        self._metrics = folder / "spans.metrics"
        monkeypatch.setenv("PROJECT_SPANS", str(self._file))
        self.mode("simple")

    def mode(self, mode):
        self._monkeypatch.setenv("PROJECT_TRACES", mode)

    def worker(self, *flags, **options):
        return self.project.worker(*flags, **{"module": "project_traces", "concurrency": 1, **options})

    def spans(self, prefix="", **wanted):
        """The spans so far, in the order of their start."""
        text = self._file.read_text() if self._file.exists() else ""
        found = sorted(map(Span, text.rpartition("\n")[0].splitlines()), key=lambda it: it.started)
        return [
            it
            for it in found
            if it.name.startswith(prefix) and all(it.attributes.get(key) == value for key, value in wanted.items())
        ]

    def attempts(self):
        return self.spans(**{"messaging.operation.name": "process"})

    def numbers(self, name):
        """The newest points of a metric: (attributes, value or count)."""
        lines = self._metrics.read_text().rpartition("\n")[0].splitlines() if self._metrics.exists() else ()
        for line in reversed(lines):
            for resource in json.loads(line)["resource_metrics"]:
                for metric in (it for scope in resource["scope_metrics"] for it in scope["metrics"]):
                    if metric["name"] == name:
                        points = metric["data"]["data_points"]
                        return [(it["attributes"], it.get("count", it.get("value"))) for it in points]
        return []

    def metrics_text(self):
        return self._metrics.read_text()

    def total(self, name, **wanted):
        return sum(value for facts, value in self.numbers(name) if wanted.items() <= facts.items())

    def dlx(self, *words):
        done = subprocess.run(
            celery("project_traces", "dlx", *words),
            env=self.project.environment(),
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def traces(project, tmp_path, monkeypatch):
    return Traces(project, tmp_path, monkeypatch)


def assert_one_picture(spans):
    """Every parent and every link is a span that was exported, and all of them hang together."""
    near = {it.id: set() for it in spans}
    for it in spans:
        for end in (*it.links.values(), *filter(None, [it.parent])):
            assert end in near, (it, spans)
            near[it.id].add(end)
            near[end].add(it.id)
    seen, new = set(), {spans[0].id}
    while new:
        seen |= new
        new = set().union(*(near[one] for one in new)) - seen
    assert seen == near.keys(), spans


def live_and_die(traces, flags, pool):
    """Send a task that dies after two retries, replay it, and return all spans."""
    project = traces.project
    with traces.worker(*flags, pool=pool):
        project.app.send_task("traces.pay")
        eventually(lambda: len(project.dead()) == 1, within=40)
        traces.mode("command")
        traces.dlx("dead", "replay", "--all", "--yes")
        return eventually(lambda: len(traces.attempts()) == 4 and traces.spans(), within=40)


@pytest.mark.parametrize("pool", POOLS)
def test_two_retries_a_death_a_replay_and_a_success_are_one_picture(traces, pool):
    spans = live_and_die(traces, ONE_EACH if pool == "prefork" else (), pool)

    attempts, publishes = traces.attempts(), traces.spans(**{"messaging.operation.type": "send"})
    assert_one_picture(spans)
    assert len(spans) == 8
    assert [it.attributes["celery.dlx.attempt"] for it in attempts] == [1, 2, 3, 1]
    assert attempts[3].attributes["celery.dlx.replays"] == 1
    for before, after in pairwise(attempts):
        assert after.links["first"] == attempts[0].id
        assert after.links["previous"] == before.id
        assert after.trace != before.trace
    assert [after.links["published"] for after in attempts[1:]] == [
        *(it.id for it in publishes if it.name.startswith("retry")),
        *(it.id for it in publishes if it.name.startswith("replay")),
    ]
    names = ["retry", "retry", "dead-letter", "replay"]
    assert [it.name for it in publishes] == [f"{name} {traces.project.queue}" for name in names]
    assert {it.kind for it in publishes} == {"PRODUCER"}
    assert {it.kind for it in attempts} == {"CONSUMER"}
    assert {it.attributes["messaging.destination.name"] for it in spans} == {traces.project.queue}
    assert {it.attributes["messaging.system"] for it in spans} == {"rabbitmq"}
    assert [it.status for it in attempts] == ["UNSET", "UNSET", "ERROR", "UNSET"]
    assert [it.id for it in spans if it.status == "ERROR"] == [attempts[2].id]
    assert attempts[2].attributes["error.type"] == "ConnectionError"
    assert {it.attributes.get("exception.type") for it in attempts[:3]} == {"ConnectionError"}
    assert not any("card 4111" in it.text for it in spans)


@pytest.mark.parametrize("order", ["as-documented", "ours-first", "other-first"])
def test_the_other_instrumentation_keeps_its_one_span_for_each_attempt_and_gets_our_links(traces, order):
    traces.mode(f"instrumented-{order}")
    spans = live_and_die(traces, ONE_EACH, "prefork")

    assert_one_picture(spans)
    attempts = traces.attempts()
    assert [it.name for it in spans if it.kind == "CONSUMER"] == ["run/traces.pay"] * 4
    assert [it.name for it in attempts] == ["run/traces.pay"] * 4
    for before, after in pairwise(attempts):
        assert (after.links["first"], after.links["previous"]) == (attempts[0].id, before.id)
    assert [it.attributes["celery.dlx.attempt"] for it in attempts] == [1, 2, 3, 1]
    assert {it.attributes["messaging.destination.name"] for it in attempts} == {traces.project.queue}
    retries = traces.spans(**{"messaging.operation.name": "retry"})
    assert [it.name for it in retries] == ["apply_async/traces.pay"] * 2
    assert [it.attributes["celery.dlx.delay_ms"] for it in retries] == [100, 100]
    assert len([it for it in spans if it.kind == "PRODUCER"]) == 4
    assert [it.id for it in spans if it.status == "ERROR"] == [attempts[2].id]


def test_the_first_attempt_belongs_to_the_trace_of_the_sender_and_later_ones_do_not(traces):
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    with traces.worker(pool="solo"):
        traces.project.app.send_task("traces.flaky", headers={"traceparent": parent}).get(timeout=30)
        first, second = eventually(lambda: len(it := traces.attempts()) == 2 and it)

    assert (first.trace[2:], first.parent[2:]) == tuple(parent.split("-")[1:3])
    assert second.parent is None
    assert second.trace != first.trace


@pytest.mark.parametrize("mode", ["simple", "instrumented-as-documented"])
def test_a_retry_that_is_called_inside_a_span_of_the_body_links_to_the_attempt(traces, mode):
    traces.mode(mode)
    with traces.worker():
        traces.project.app.send_task("traces.asked").get(timeout=30)
        first, second = eventually(lambda: len(it := traces.attempts()) == 2 and it)

    (retry,) = traces.spans(**{"messaging.operation.name": "retry"})
    (query, _) = traces.spans("query")
    assert query.parent == first.id
    if mode == "simple":
        assert retry.parent == first.id
        assert second.links == {"first": first.id, "previous": first.id, "published": retry.id}
    else:
        assert (retry.name, retry.parent) == ("apply_async/traces.asked", query.id)
        assert (second.links, second.parent) == ({"first": first.id, "previous": first.id}, retry.id)


def test_a_retry_into_another_queue_names_that_queue(traces):
    queue, other = traces.project.queue, f"{traces.project.prefix}.other"
    with traces.worker("-Q", f"{queue},{other}"):
        traces.project.app.send_task("traces.moved", (other,)).get(timeout=30)
        spans = eventually(lambda: len(it := traces.spans()) == 3 and it)

    assert [it.name for it in spans] == [f"process {queue}", f"retry {other}", f"process {other}"]
    assert_one_picture(spans)


@pytest.mark.parametrize(("name", "error"), [("slow", "TimeLimitExceeded"), ("killed", "WorkerLostError")])
def test_an_attempt_whose_process_is_gone_has_a_span_from_the_main_process(traces, name, error):
    with traces.worker():
        traces.project.app.send_task(f"traces.{name}").get(timeout=60)
        spans = eventually(lambda: len(it := traces.spans()) == 3 and it)

    assert_one_picture(spans)
    lost, again = traces.attempts()
    (retry,) = traces.spans("retry")
    assert retry.parent == lost.id
    assert again.links == {"first": lost.id, "previous": lost.id, "published": retry.id}
    assert error in lost.text
    assert {it.status for it in spans} == {"UNSET"}


def test_messages_that_no_task_can_take_have_the_span_of_their_dead_letter(traces):
    with traces.worker():
        traces.project.app.send_task("traces.unknown\ud800" + "x" * 300)
        with Connection(traces.project.url) as connection:
            producer = connection.Producer()
            to = {"routing_key": traces.project.queue}
            producer.publish(b"\xff", content_type="application/json", content_encoding="utf-8", **to)
            producer.publish({"no": "task"}, serializer="json", **to)
        spans = eventually(lambda: len(it := traces.spans()) == 3 and it)

    assert {it.name for it in spans} == {f"dead-letter {traces.project.queue}"}
    assert {it.attributes["celery.dlx.reason"] for it in spans} == {"unknown-task", "invalid", "undecodable"}
    assert {it.status for it in spans} == {"ERROR"}
    assert all(len(it.attributes["celery.task_name"]) <= 255 for it in spans)


def test_a_forged_header_harms_nothing(traces):
    with traces.worker(pool="solo"):
        for value in FORGED:
            headers = {"dlx-trace": value, "traceparent": value, "tracestate": value, "baggage": value}
            traces.project.app.send_task("traces.flaky", headers=headers).get(timeout=30)
        attempts = eventually(lambda: len(it := traces.attempts()) == 2 * len(FORGED) and it)

    assert len(traces.spans("retry")) == len(FORGED)
    assert [it for it in attempts if it.attributes["celery.dlx.attempt"] == 1 and it.links] == [attempts[0]]
    assert all(it.links for it in attempts if it.attributes["celery.dlx.attempt"] == 2)
    assert traces.project.dead() == []


@pytest.mark.parametrize("pool", ["prefork", "solo"])
def test_a_tracer_that_fails_costs_no_message(traces, pool):
    traces.mode("broken")
    with traces.worker(pool=pool) as worker:
        healed = traces.project.app.send_task("traces.flaky", (2,))
        traces.project.app.send_task("traces.pay")
        traces.project.app.send_task("traces.unknown")

        assert healed.get(timeout=40) is None
        eventually(lambda: len(traces.project.dead()) == 2, within=40)
        traces.mode("broken-command")
        traces.dlx("dead", "replay", "--task", "traces.pay", "--yes")
        eventually(lambda: len(traces.project.dead()) == 1)
        assert "the tracer fails" in worker.log
        assert "header writer" in worker.log


def test_spans_of_a_process_that_is_replaced_are_exported(traces):
    traces.mode("batch")
    with traces.worker(*ONE_EACH):
        for _ in range(3):
            traces.project.app.send_task("traces.flaky")

        eventually(lambda: len(traces.attempts()) == 6 and len(traces.spans("retry")) == 3, within=40)


def test_the_main_process_counts_for_all_processes_and_once(traces):
    queue = traces.project.queue
    with traces.worker("--max-tasks-per-child", "4"):
        for number in range(3):
            traces.project.app.send_task("traces.flaky", (2,), task_id=f"id-{number}")
            traces.project.app.send_task("traces.pay")
            traces.project.app.send_task(f"traces.unknown-{number}")
        eventually(lambda: traces.total("celery.dlx.recovered") == 3, within=90)
        eventually(lambda: traces.total("celery.dlx.dead_letters") == 6, within=90)

        assert traces.total("celery.dlx.retries") == 12
        flaky = {"celery.task_name": "traces.flaky", "error.type": "TimeoutError", "celery.dlx.way": "lane"}
        assert traces.total("celery.dlx.retries", **flaky) == 6
        assert traces.total("celery.dlx.dead_letters", **{"celery.dlx.reason": "exhausted"}) == 3
        assert traces.total("celery.dlx.dead_letters", **{"celery.task_name": "unknown"}) == 3
        assert traces.total("celery.dlx.retry.delay") == 12
        assert traces.total("celery.dlx.recovery.duration") == 3
        duration = {"messaging.operation.type": "send", "messaging.destination.name": queue}
        assert traces.total("messaging.client.operation.duration", **duration) == 12 + 6
        text = traces.metrics_text()
    assert "id-1" not in text
    assert "the bank does not answer" not in text
    assert "unknown-1" not in text
