"""What a real sentry-sdk sends of our tasks, beside those of plain Celery: errors, spans and check-ins."""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import pytest
from kombu.connection import Connection
from support import eventually

from tests.worker.stage import stage

TWINS = ("plain", "ours")
SECRET = "s3cret"  # noqa: S105 - an argument that must not be sent
#: How often each task runs, and how many errors Sentry hears of.
RUNS = {"heals": 3, "exhausted": 2, "autoretried": 2, "fails": 1, "throws": 1, "soft": 1, "rejects": 1, "ignores": 1}
ERRORS = {"exhausted": "OSError", "autoretried": "OSError", "fails": "ValueError", "soft": "SoftTimeLimitExceeded"}
REASONS = {"exhausted": "exhausted", "autoretried": "exhausted", "fails": "failed", "throws": "failed",
           "soft": "failed", "rejects": "rejected"}  # fmt: skip
NO_SOFT_LIMIT = "threads"
JSON = {"content_type": "application/json", "content_encoding": "utf-8"}
#: Messages that no task can take: headers, body, and what Celery logs of it as an error.
STRAYS = {
    "unknown-task": ({"task": "nobody.knows", "id": "1"}, "[[], {}, {}]", "KeyError"),
    "invalid": ({"task": "sentry.ours.fails", "id": "2"}, '["no", "task"]', "InvalidTaskError"),
    "undecodable": ({"task": "sentry.ours.fails", "id": "3"}, "{", "DecodeError"),
}


class Sentry:
    """What the processes of a project have sent to Sentry."""

    def __init__(self, project):
        self._file = Path(f"{project.records_file}.sentry")

    def text(self):
        return self._file.read_text().rpartition("\n")[0] if self._file.exists() else ""

    def items(self, kind, /, **wanted):
        lines = [json.loads(line) for line in self.text().splitlines()]
        found = [json.loads(line["raw"]) for line in lines if line["type"] == kind]
        return [it for it in found if all(it.get(key) == value for key, value in wanted.items())]

    def of(self, kind, result):
        """Those of the runs of a task."""
        return [it for it in self.items(kind) if (it.get("tags") or {}).get("celery_task_id") == result.id]


@contextmanager
def watched(request, *, pool="prefork", concurrency=2, conf=None, **environment):
    with stage(request, **(conf or {})) as it, pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(f"PROJECT_{name.upper()}", value)
        it.start(module="project_sentry", pool=pool, concurrency=concurrency).wait_until_ready()
        it.sentry, it.pool = Sentry(it), pool
        yield it


@pytest.fixture(scope="module", params=["prefork", "threads"])
def project(request):
    with watched(request, pool=request.param) as it:
        yield it


@pytest.fixture(scope="module")
def runs(project):
    """All runs of every task, by twin and name, in order, when nothing more comes."""
    names = [name for name in RUNS if (name, project.pool) != ("soft", NO_SOFT_LIMIT)]
    sent = {(twin, name): send(project, f"{twin}.{name}") for name in names for twin in TWINS}

    def found():
        return {key: project.sentry.of("transaction", result) for key, result in sent.items()}

    eventually(lambda: all(len(seen) == RUNS[key[1]] for key, seen in found().items()), within=60)
    project.sent = sent
    return {key: sorted(seen, key=lambda it: it["start_timestamp"]) for key, seen in found().items()}


def at(text):
    return datetime.fromisoformat(str(text).replace("Z", "+00:00")).timestamp()


def send(project, name):
    arguments = () if name.endswith((".heals", ".sends")) else (SECRET,)
    return project.app.send_task(f"sentry.{name}", arguments)


def each(runs):
    return sorted({name for _, name in runs})


def spans(transaction, op):
    return [span for span in transaction["spans"] if span["op"] == op]


def shape(transaction, twin):
    """Return what must be the same on both sides."""
    told = []
    for span in transaction["spans"]:
        data = {key: value for key, value in span["data"].items() if key.startswith("messaging.")}
        for name in ("messaging.message.id", "messaging.message.receive.latency"):
            data[name] = name in data
        told.append((span["op"], span["description"].replace(f".{twin}.", "."), span.get("status"), data))
    queues = [it for it in told if it[0].startswith("queue.")]
    return transaction["contexts"]["trace"]["status"], queues


def latency_of(transaction):
    """What Sentry shows as the time in the queue, in seconds."""
    (span,) = spans(transaction, "queue.process")
    return span["data"]["messaging.message.receive.latency"] / 1000


def passed(sending, running):
    """How long it really was from a publish to the run, in seconds."""
    (processed,) = spans(running, "queue.process")
    task_id = processed["data"]["messaging.message.id"]
    (published,) = [it for it in spans(sending, "queue.publish") if it["data"]["messaging.message.id"] == task_id]
    return at(processed["start_timestamp"]) - at(published["start_timestamp"])


def test_each_run_has_the_transaction_and_the_spans_that_it_has_with_celery(runs):
    for name in each(runs):
        plain, ours = ([shape(it, twin) for it in runs[twin, name]] for twin in TWINS)
        assert ours == plain, name


def test_process_and_publish_spans_name_the_work_queue_and_count_the_retries(project, runs):
    processed, published = ([spans(it, f"queue.{op}") for it in runs["ours", "heals"]] for op in ("process", "publish"))

    data = [[(span["data"]["messaging.destination.name"], span["data"]["messaging.message.retry.count"])
             for span in found] for found in (*processed, *published)]  # fmt: skip
    queue = project.queue
    assert data == [[(queue, 0)], [(queue, 1)], [(queue, 2)], [(queue, 1)], [(queue, 2)], []]


def test_a_dead_letter_is_no_publish_span(runs):
    for name in REASONS.keys() & set(each(runs)):
        assert spans(runs["ours", name][-1], "queue.publish") == [], name


def test_all_runs_of_a_task_are_one_trace(runs):
    for name in each(runs):
        traces = [it["contexts"]["trace"] for it in runs["ours", name]]
        assert len({trace["trace_id"] for trace in traces}) == 1
        assert all(trace["parent_span_id"] for trace in traces[1:])


def test_each_death_is_one_error_with_tags_and_no_retry_is_one(project, runs):
    for name in each(runs):
        plain, ours = (project.sentry.of("event", project.sent[twin, name]) for twin in TWINS)
        kinds = [[it["exception"]["values"][-1]["type"] for it in events] for events in (plain, ours)]
        assert kinds[0] == kinds[1] == [kind for it, kind in ERRORS.items() if it == name], name
        for event in ours:
            tags = event["tags"]
            assert (tags["dlx.reason"], tags["dlx.queue"]) == (REASONS[name], project.queue)
            assert tags["dlx.attempts"] == str(RUNS[name])
            assert re.fullmatch(r"[0-9a-f]{8}", tags["dlx.group"])
    assert not [it for it in project.sentry.items("event") if "celery_task_id" not in (it.get("tags") or {})]


def test_only_the_run_that_dies_is_tagged(runs):
    for (twin, name), found in runs.items():
        tagged = [{key for key in it["tags"] if key.startswith("dlx.")} for it in found]
        last = {f"dlx.{it}" for it in ("reason", "group", "attempts", "queue")} if name in REASONS else set()
        assert tagged == [set()] * (len(found) - 1) + [last if twin == "ours" else set()], (twin, name)


def test_the_receive_latency_is_without_the_wait(runs):
    for before, after in itertools.pairwise(runs["plain", "heals"]):
        assert latency_of(after) == pytest.approx(passed(before, after), abs=1)
    for before, after in itertools.pairwise(runs["ours", "heals"]):
        assert 0 <= latency_of(after) <= passed(before, after) - 2  # of 3 s


def test_we_add_no_variables_to_an_error(project, runs):
    sent = [project.sent["ours", name] for name in each(runs)]
    frames = [
        frame
        for result in sent
        for event in project.sentry.of("event", result)
        for error in event["exception"]["values"]
        for frame in error["stacktrace"]["frames"]
    ]

    ours = [frame for frame in frames if frame["module"].startswith("celery_dlx_retry.")]
    assert ours
    assert not any("vars" in frame for frame in ours)
    assert SECRET not in json.dumps([runs["ours", name] for name in each(runs)])


@pytest.mark.parametrize("countdown", [None, 3])
def test_a_call_with_a_countdown_names_the_work_queue_and_the_task_is_in_the_same_trace(project, countdown):
    found = {}
    for twin in TWINS:
        sender = project.app.send_task(f"sentry.{twin}.sends", (countdown,))
        (sending,) = eventually(lambda sender=sender: project.sentry.of("transaction", sender))
        (publish,) = spans(sending, "queue.publish")
        trace = sending["contexts"]["trace"]["trace_id"]
        (ran,) = eventually(
            lambda twin=twin, trace=trace: [
                it
                for it in project.sentry.items("transaction", transaction=f"sentry.{twin}.heals")
                if it["contexts"]["trace"]["trace_id"] == trace
            ]
        )
        (process,) = spans(ran, "queue.process")
        if twin == "ours":
            assert latency_of(ran) <= passed(sending, ran) - (2 if countdown else -1)
        found[twin] = [span["data"]["messaging.destination.name"] for span in (publish, process)]

    assert found["ours"] == found["plain"] == [project.queue] * 2


@pytest.mark.parametrize(
    ("name", "args", "told"),
    [
        ("heals", (1, 0.3), ["in_progress", "error", "ok"]),
        ("autoretried", (SECRET,), ["in_progress", "error", "error"]),
        ("fails", (SECRET,), ["in_progress", "error"]),
    ],
)
def test_a_monitor_of_beat_hears_what_it_hears_with_celery(project, name, args, told):
    for twin in TWINS:
        task = f"sentry.{twin}.{name}"
        project.app.send_task("sentry.beat", (task, args))

        def check_ins(task=task):
            return project.sentry.items("check_in", monitor_slug=task)

        eventually(lambda: len(check_ins()) == len(told))
        assert [it["status"] for it in check_ins()] == told
        assert len({it["check_in_id"] for it in check_ins()}) == 1


def test_a_parked_task_has_a_latency_without_its_wait(request):
    with watched(request, pool="threads") as project:
        # The first one opens the breaker, the second one probes it, and the third one waits for four seconds.
        project.app.send_task("sentry.calls", ("sentry.parked", (), 3))
        (sent,) = eventually(lambda: project.sentry.items("transaction", transaction="sentry.calls"))
        parked = {"transaction": "sentry.parked"}
        *_, ran = eventually(
            lambda: len(found := project.sentry.items("transaction", **parked)) == 3 and found, within=40
        )

    assert passed(sent, ran) > 3
    # RabbitMQ notes in whole seconds when a message left its lane.
    assert 0 <= latency_of(ran) < passed(sent, ran) - 2


def test_a_replayed_task_has_no_latency(request):
    with watched(request, pool="threads") as project:
        project.app.send_task("sentry.calls", ("sentry.ours.throws", (SECRET,)))
        (letter,) = eventually(project.dead)
        assert project.celery("dlx", "dead", "replay", "--all", "--yes").returncode == 0
        result = project.app.AsyncResult(letter.record.task_id)
        runs = eventually(lambda: len(found := project.sentry.of("transaction", result)) == 2 and found)

    latencies = ["messaging.message.receive.latency" in spans(it, "queue.process")[0]["data"] for it in runs]
    assert latencies == [True, False]


def kind_of(event):
    """The class of an error; of a log line without one, its text."""
    errors = (event.get("exception") or {}).get("values")
    return errors[-1]["type"] if errors else event["logentry"]["message"]


def test_deaths_in_the_main_process_are_one_error_each_with_tags(request):
    with watched(request, conf={"dlx_crash_limit": 2}) as project:
        lost = project.app.send_task("sentry.ours.crashes", (SECRET,))
        late = project.app.send_task("sentry.overrun")
        for name in ("crashes", "hard"):
            project.app.send_task(f"sentry.plain.{name}", (SECRET,))
        with Connection(project.url) as connection:
            for headers, body, _ in STRAYS.values():
                connection.Producer().publish(body, routing_key=project.queue, headers=headers, **JSON)
            connection.Producer().publish("{}", routing_key=project.queue, headers={}, **JSON)  # Celery logs a warning
        eventually(lambda: len(project.dead()) == 3 + len(STRAYS), within=60)
        letters = {str(letter.record.reason): letter.record for letter in project.dead()}
        expected = {reason: error for reason, (_, _, error) in STRAYS.items()}
        expected |= {"worker-lost": "WorkerLostError", "timeout": "TimeLimitExceeded"}

        of_celery = Counter(("WorkerLostError", "TimeLimitExceeded", "Hard time limit (%ss) exceeded for %s[%s]"))

        def errors():
            # billiard logs every process that ends, and Sentry makes an event of it: it belongs to no task.
            return [it for it in project.sentry.items("event") if it.get("logger") != "multiprocessing"]

        eventually(lambda: len(errors()) >= len(expected) + len(of_celery))

    found = {it["tags"]["dlx.reason"]: it for it in errors() if it.get("tags")}
    assert {reason: kind_of(it) for reason, it in found.items()} == expected
    assert Counter(kind_of(it) for it in errors() if not it.get("tags")) == of_celery
    assert len(errors()) == len(expected) + len(of_celery)
    assert letters.keys() == expected.keys()
    for reason, result in (("worker-lost", lost), ("timeout", late)):
        tags = found[reason]["tags"]
        assert (tags["celery_task_id"], tags["dlx.attempts"]) == (result.id, "2")
        assert found[reason]["transaction"] == letters[reason].task
    assert not any("celery_task_id" in found[reason]["tags"] for reason in STRAYS)


def test_a_crash_loop_is_one_error(request):
    with watched(request, concurrency=1, conf={"dlx_crash_limit": 1}) as project:
        result = project.app.send_task("sentry.loops")
        for _ in range(2):
            worker = project._running[-1]
            eventually(lambda worker=worker: not worker.is_alive, within=30)
            project.start(module="project_sentry", concurrency=1)
        (event,) = eventually(lambda: project.sentry.of("event", result), within=40)
        eventually(project.dead)

    assert event["exception"]["values"][-1]["type"] == "CrashLoop"
    assert event["tags"]["dlx.reason"] == "crash-loop"


def test_streamed_spans_name_the_work_queue_too(request):
    with watched(request, pool="threads", sentry='{"trace_lifecycle": "stream"}') as project:
        result = project.app.send_task("sentry.ours.exhausted", (SECRET,))
        (event,) = eventually(lambda: project.sentry.of("event", result))

        def found():
            spans = [span for it in project.sentry.items("span") for span in it["items"]]
            return [it for it in spans if it["attributes"]["sentry.op"]["value"] in {"queue.publish", "queue.process"}]

        eventually(lambda: len(found()) >= 3)

    assert event["tags"]["dlx.reason"] == "exhausted"
    assert [it["attributes"]["messaging.destination.name"]["value"] for it in found()] == [project.queue] * 3


def test_without_the_adapter_the_spans_are_right_and_there_are_no_tags(request):
    with watched(request, pool="threads", bare="1") as project:
        result = project.app.send_task("sentry.ours.exhausted", (SECRET,))
        (event,) = eventually(lambda: project.sentry.of("event", result))
        runs = eventually(lambda: len(found := project.sentry.of("transaction", result)) == 2 and found)

    assert not any(key.startswith("dlx.") for key in event["tags"])
    (published,) = [span for it in runs for span in spans(it, "queue.publish")]
    assert published["data"]["messaging.destination.name"] == project.queue


def test_hooks_that_raise_cost_no_message(request):
    with watched(request, hooks="raise") as project:
        names = ("fails", "exhausted", "soft", "hard")
        dies = [project.app.send_task(f"sentry.ours.{name}", (SECRET,)) for name in names]
        heals = project.app.send_task("sentry.ours.heals", (1, 0.3))
        eventually(lambda: len(project.dead()) >= len(dies), within=40)
        eventually(heals.ready, within=40)
        letters = {letter.record.task_id for letter in project.dead()}

    assert letters - {heals.id} == {result.id for result in dies}
    assert (heals.state, heals.id in letters) in {("SUCCESS", False), ("FAILURE", True)}
