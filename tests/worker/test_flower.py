"""What a real Flower shows of our tasks beside those of plain Celery."""

from __future__ import annotations

import json
import re
import socket
import time
from datetime import datetime
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from celery import states
from support import eventually

from celery_dlx_retry.testing.sandbox import wait_until
from tests.worker.stage import listening, stage
from tests.workers import celery, start_worker

TWINS = ("plain", "ours")


@pytest.fixture(scope="module")
def project(request):
    with stage(request) as it:
        it.conf["event_exchange"] = f"{it.prefix}.events"
        it.start("-E", module="project_monitored").wait_until_ready()
        yield it


@pytest.fixture(scope="module")
def flower(project, tmp_path_factory):
    """A real Flower that listens to the worker."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = start_worker(
        celery("project_monitored", "flower", "--address=127.0.0.1", f"--port={port}"),
        log=tmp_path_factory.mktemp("flower") / "log",
        environment={**project.environment(), "FLOWER_UNAUTHENTICATED_API": "true"},
    )
    project._running.append(process)  # which ends it

    it = Flower(port)

    def is_listening():
        first = project.app.send_task("monitored.plain.fails")
        return wait_until(lambda: it.task(first), within=2)

    eventually(is_listening)  # Flower hears only events that come after it listens
    return it


class Flower:
    """A client of its pages."""

    def __init__(self, port):
        self._port = port

    def get(self, path):
        try:
            with urlopen(f"http://127.0.0.1:{self._port}/{path}", timeout=10) as answer:
                return answer.read().decode()
        except URLError:
            return "{}"

    def task(self, result):
        return json.loads(self.get("api/tasks")).get(result.id)


@pytest.mark.parametrize("twin", TWINS)
def test_flower_shows_when_a_waiting_retry_runs(project, flower, twin):
    sent = time.time()
    result = project.app.send_task(f"monitored.{twin}.waits")

    shown = eventually(lambda: (found := flower.task(result)) and found["eta"] and found)

    assert datetime.fromisoformat(shown["eta"]).timestamp() == pytest.approx(sent + 60, abs=20)
    assert shown["state"] in {"RETRY", "RECEIVED"}
    assert shown["exception"] == "ConnectionError('no answer')"


def test_flower_counts_dead_letters_and_shows_them_as_the_failures_that_they_are(project, flower):
    result = project.app.send_task("monitored.ours.fails")

    counted = r'^flower_events_total\{task="monitored.ours.fails",type="task-dead-lettered",.*\} 1'
    eventually(lambda: re.search(counted, flower.get("metrics"), re.MULTILINE))
    shown = flower.task(result)
    assert (shown["state"], shown["exception"]) == ("FAILURE", "ValueError('broken')")


@pytest.mark.parametrize(
    ("how", "times", "last"), [("slow", 1, "SUCCESS"), ("killed", 1, "SUCCESS"), ("slow", 9, "FAILURE")]
)
def test_what_the_main_process_retries_has_an_eta_and_known_states_alone(project, how, times, last):
    project.app.conf.event_exchange = project.conf["event_exchange"]
    state, shown = project.app.events.State(), []
    with listening(project.app, events := []):
        result = project.app.send_task("monitored.main", (how, times))
        eventually(lambda: project.app.AsyncResult(result.id).state == last, within=60)
        kind = "task-succeeded" if last == "SUCCESS" else "task-dead-lettered"
        eventually(lambda: [it for it in events if (it.get("uuid"), it["type"]) == (result.id, kind)])
    for event in [it for it in events if it.get("uuid") == result.id]:
        state.event(event)
        shown.append((event["type"], state.tasks[result.id].state))

    assert {it for _, it in shown} <= states.ALL_STATES
    assert state.tasks[result.id].state == last
    (retried,) = [it["eta"] for it in events if (it.get("uuid"), it["type"]) == (result.id, "task-retried")]
    received = [it["eta"] for it in events if (it.get("uuid"), it["type"]) == (result.id, "task-received")]
    assert received == [None, retried]
    assert [row["eta"] for row in project.records(id=result.id)] == [None, retried]
    if last == "FAILURE":
        (letter,) = [it for it in events if (it.get("uuid"), it["type"]) == (result.id, "task-dead-lettered")]
        assert [it for it, _ in shown][-2:] == ["task-failed", "task-dead-lettered"]
        assert (letter["reason"], letter["queue"], letter["attempts"]) == ("timeout", project.queue, 2)
        assert re.fullmatch(r"[0-9a-f]{8}", letter["group"])
