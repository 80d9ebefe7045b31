"""A worker of plain Celery and one of ours, which run the same failing tasks while the same tools watch them."""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch
from urllib.error import URLError
from urllib.request import urlopen

from celery import chord
from prometheus_client.parser import text_string_to_metric_families
from support import eventually

from celery_dlx_retry.testing.sandbox import LOOPBACK, free_ports, wait_until
from tests.side_by_side import celery_exporter
from tests.side_by_side.cases import CASES, CHORD, REVOKED
from tests.worker.stage import listening
from tests.workers import celery, start_worker

if TYPE_CHECKING:
    from contextlib import ExitStack

    from celery import Celery

FOLDER = Path(__file__).parent
TWINS = ("plain", "ours")
FLOWER_COLUMNS = "--tasks-columns=name,state,retries,eta,received,worker"
#: A task has come to its end if one of these was sent.
ENDS = {"task-succeeded", "task-failed", "task-rejected", "task-revoked"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What the tools show of one task."""

    result: str
    flower: dict[str, Any]
    events: Counter[str]
    #: By the name of the counter, and the exception or the reason.
    exporter: Counter[tuple[str, str]]
    metrics: Counter[tuple[str, str]]


class World:
    """Two workers, Flower, celery-exporter, and a sender."""

    def __init__(self, *, url: str, backend: str, folder: Path, stack: ExitStack, management_url: str) -> None:
        self._url, self._backend, self._folder, self._stack = url, backend, folder, stack
        self.worker_port, self.flower_port, self.exporter_port, self.dlx_port = free_ports(4)
        self.events: list[dict[str, Any]] = []
        self._sent: dict[tuple[str, str], str] = {}
        self.environment = {
            **os.environ,
            "PYTHONPATH": str(FOLDER),
            "PYTHONWARNINGS": "ignore",
            "DLX_MANAGEMENT_URL": management_url,
            "SHOP_BROKER": url,
            "SHOP_BACKEND": backend,
            "FLOWER_UNAUTHENTICATED_API": "true",
        }
        self._apps = self._senders()

    def start(self) -> None:
        """Start all of it, and return when all listen."""
        options = ("worker", "-l", "INFO", "-c", "2", "--without-mingle", "--without-gossip")
        workers = [
            self.process(twin, *options, "-n", f"worker@{twin}", *more)
            for twin, more in (("plain", ()), ("ours", ("--dlx-metrics-port", str(self.worker_port))))
        ]
        self._start("exporter", celery_exporter.command(
            "--broker-url", self._url, "--host", LOOPBACK, "--port", str(self.exporter_port)
        ))  # fmt: skip
        self.process(
            "plain", "flower", f"--address={LOOPBACK}", f"--port={self.flower_port}", FLOWER_COLUMNS, name="flower"
        )
        self.process("ours", "dlx", "exporter", "--port", str(self.dlx_port), "--interval", "0.5", name="dlx-exporter")
        for worker in workers:
            worker.wait_until_ready(within=60)
        self._stack.enter_context(listening(self._apps["plain"], self.events))
        eventually(self._all_listen, within=90)

    def process(self, twin: str, *words: str, name: str = "") -> Any:
        """Start ``celery -A <twin> …``; the end of the world ends it."""
        return self._start(name or twin, celery(twin, *words))

    def send_all(self) -> None:
        """Send every task to both workers."""
        for twin, app in self._apps.items():
            for name, case in CASES.items():
                if name not in CHORD:
                    self._sent[name, twin] = self.send(twin, name, **case.options)
            members = [app.tasks[f"{twin}.{task}"].si() for task in ("greets", CHORD[0])]
            done = chord(members, app=app)(app.tasks[f"{twin}.{CHORD[1]}"].s())
            self._sent[CHORD[0], twin], self._sent[CHORD[1], twin] = done.parent[1].id, done.id
        eventually(lambda: self._types(REVOKED, "plain")["task-received"])  # the other one waits in a lane
        for twin, app in self._apps.items():
            app.control.revoke(self._sent[REVOKED, twin])

    def wait(self, *, within: float = 120) -> None:
        """Wait until each task has ended, and nothing more comes."""
        ends = [key for key in self._sent if CASES[key[0]].ends]
        eventually(lambda: all(self._types(*key).keys() & ENDS for key in ends), within=within)
        wait_until(lambda: time.time() - max(e["timestamp"] for e in self.events if "uuid" in e) > 5, within=within)

    def seen(self) -> dict[tuple[str, str], Seen]:
        """Return what the tools show now of each case and twin."""
        flower = self.flower()
        exporter = _counted(self.samples(self.exporter_port), "celery_task_", label="exception")
        metrics = _counted(self.samples(self.worker_port), "celery_dlx_", label="reason")
        return {
            (name, twin): Seen(
                result=self._apps[twin].AsyncResult(task_id).state,
                flower=flower.get(task_id, {}),
                events=self._types(name, twin),
                exporter=exporter[f"{twin}.{name}"],
                metrics=metrics["unknown" if (name, twin) == ("unknown", "ours") else f"{twin}.{name}"],
            )
            for (name, twin), task_id in self._sent.items()
        }

    def state_of(self, name: str, twin: str, *, until: str = "") -> Any:
        """Return the task in Celery's event state: at the end, or after the last event of this type."""
        heard = [event for event in list(self.events) if event.get("uuid") == self._sent[name, twin]]
        while until and heard[-1]["type"] != until:
            heard.pop()
        state = self._apps[twin].events.State()
        for event in heard:
            state.event(event)
        return state.tasks[self._sent[name, twin]]

    def waiting(self, twin: str) -> int:
        """Return how many tasks of this work queue wait in lanes, as our exporter counts them."""
        return sum(
            int(it.value)
            for it in self.samples(self.dlx_port)
            if it.name == "celery_dlx_waiting_messages" and it.labels["queue_name"] == twin
        )

    def held(self, twin: str) -> int:
        """Return how many tasks this worker holds in its memory until they are due."""
        found = self._apps[twin].control.inspect(destination=[f"worker@{twin}"], timeout=10).scheduled()
        return sum(map(len, found.values()))

    def flower(self) -> dict[str, Any]:
        """Return Flower's tasks by their ids."""
        return json.loads(self.get(self.flower_port, "api/tasks") or "{}")

    def samples(self, port: int) -> list[Any]:
        """Return what a metrics page shows."""
        families = text_string_to_metric_families(self.get(port, "metrics"))
        return [sample for family in families for sample in family.samples]

    def get(self, port: int, path: str) -> str:
        """Return a page, or nothing if the server does not answer."""
        try:
            with urlopen(f"http://{LOOPBACK}:{port}/{path}", timeout=20) as answer:
                return answer.read().decode()
        except URLError:
            return ""

    def log(self, name: str) -> str:
        return (self._folder / f"{name}.log").read_text()

    def _types(self, name: str, twin: str) -> Counter[str]:
        task_id = self._sent[name, twin]
        return Counter(event["type"] for event in list(self.events) if event.get("uuid") == task_id)

    def _senders(self) -> dict[str, Celery]:
        """Return the apps of two web processes: they know their tasks."""
        with patch.dict(os.environ, self.environment), patch.object(sys, "path", [str(FOLDER), *sys.path]):
            found = {twin: importlib.import_module(twin).app for twin in TWINS}
        for module in (*TWINS, "tasks"):
            del sys.modules[module]
        return found

    def send(self, twin: str, name: str, **options: Any) -> str:
        app = self._apps[twin]
        task = app.tasks.get(f"{twin}.{name}")
        return (task.apply_async(**options) if task else app.send_task(f"{twin}.{name}", **options)).id

    def _all_listen(self) -> bool:
        sent = [self.send(twin, "greets") for twin in TWINS]

        def is_heard() -> bool:
            done = {event["uuid"] for event in list(self.events) if event["type"] == "task-succeeded"}
            return done >= set(sent) and self.flower().keys() >= set(sent) and len(self._succeeded()) == len(TWINS)

        return wait_until(is_heard, within=3)

    def _succeeded(self) -> list[Any]:
        return [it for it in self.samples(self.exporter_port) if it.name == "celery_task_succeeded_total" and it.value]

    def _start(self, name: str, command: list[str]) -> Any:
        it = start_worker(command, log=self._folder / f"{name}.log", environment=self.environment, cwd=self._folder)
        self._stack.callback(lambda: it.is_alive and it.kill())
        return it

    def close(self) -> None:
        """End what the senders hold open."""
        for app in self._apps.values():
            if consumer := getattr(app.backend, "result_consumer", None):
                consumer.stop()
                consumer._pubsub = None  # a late AsyncResult.__del__ would open it again
            app.backend.client.connection_pool.disconnect()
            app.close()


def _counted(samples: list[Any], prefix: str, *, label: str) -> defaultdict[str, Counter[tuple[str, str]]]:
    """Return the counters by the names of the tasks, of all hosts and queues."""
    found: defaultdict[str, Counter[tuple[str, str]]] = defaultdict(Counter)
    for sample in samples:
        if sample.name.startswith(prefix) and sample.name.endswith("_total") and sample.value:
            key = (sample.name.removeprefix(prefix).removesuffix("_total"), sample.labels.get(label, ""))
            found[sample.labels.get("name", "")][key] += int(sample.value)
    return found
