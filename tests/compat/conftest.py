"""The same play with a worker of each pool, on each RabbitMQ: all of it runs first, then the tests look at it.

Workers take seconds to start and retries to wait, so the four pools do it side by side.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
import rabbits

from celery_dlx_retry.testing.sandbox import wait_until
from tests.worker.stage import stage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness import Project

    from tests.workers import Worker

POOLS = ("prefork", "solo", "threads", "gevent")
HAS_HARD_LIMITS = ("prefork", "gevent")
PLAY_SECONDS = 60.0
VERSIONS = [os.environ[rabbits.VERSION]] if os.environ.get(rabbits.VERSION) else list(rabbits.VERSIONS)


class Scene:
    """One pool's part. Nothing is asserted here: what does not happen in a minute, a test finds missing."""

    def __init__(self, project: Project, pool: str) -> None:
        self.project, self.pool = project, pool
        self.repaired = project.results / "repaired"
        self._deadline = time.monotonic() + PLAY_SECONDS
        self.listed = self.replayed = self.ended = None
        self.sent: dict[str, Any] = {}
        self._worker: Worker

    def starts(self) -> None:
        self._worker = self.project.start(module="project_smoke", pool=self.pool, concurrency=4)

    def works(self) -> None:
        self._wait(lambda: self._worker.is_ready)
        errback = self.project.app.signature("canvas.note", kwargs={"of": "exhaust", "event": "errback"})
        self._send("heal", "project.heal", 2, 0.3)
        self._send("exhaust", "smoke.exhaust", str(self.repaired), link_error=errback)
        self._send("countdown", "later.send", 1.3)
        if self.pool in HAS_HARD_LIMITS:
            self._send("overrun", "project.overrun")
            self._send("overrun_once", "project.overrun_once")
        if self.pool == "prefork":
            self._send("crash", "project.crash", 1)

    def has_worked(self) -> None:
        self._wait(lambda: all(it.ready() for it in self.sent.values()))
        self._wait(lambda: self.project.records(event="errback") and self.project.records(task="later.note"))

    def is_operated(self) -> None:
        """``celery dlx`` is the same with every pool; one is enough."""
        if self.pool != "prefork":
            return
        self._deadline = time.monotonic() + PLAY_SECONDS
        self.listed = self.project.celery("dlx", "dead", "list", "--json")
        self.repaired.touch()
        self.replayed = self.project.celery("dlx", "dead", "replay", "--reason", "exhausted", "--yes")
        self._wait(lambda: self.result("exhaust") == "repaired")

    def is_killed(self) -> None:
        self._send("hold", "smoke.hold")
        self._wait(lambda: self.project.records(task="smoke.hold"))
        if self.is_alive:
            self._worker.kill()
        self.starts()

    def goes_on(self) -> None:
        self._wait(self.sent["hold"].ready)

    def ends(self) -> None:
        if self.is_alive:
            os.kill(self._worker.process.pid, signal.SIGTERM)

    def has_ended(self) -> None:
        wait_until(lambda: not self.is_alive, within=15)  # a second SIGTERM would be a cold shutdown
        self.ended = self._worker.stop()

    @property
    def is_alive(self) -> bool:
        return self._worker.is_alive

    @property
    def log(self) -> str:
        return self._worker.log

    def result(self, name: str) -> Any:
        """What it came to by now: a result object remembers the first end, and a replay has another."""
        return self.project.app.AsyncResult(self.sent[name].id).result

    def runs(self, name: str) -> list[dict[str, Any]]:
        return self.project.records(id=self.sent[name].id, event="run")

    def letter(self, name: str) -> Any:
        """The dead letter of a task, the only one of it."""
        (found,) = [it for it in self.project.dead() if it.record.task_id == self.sent[name].id]
        return found

    def _send(self, key: str, name: str, *args: Any, **options: Any) -> None:
        self.sent[key] = self.project.app.send_task(name, args, **options)

    def _wait(self, check: Any) -> None:
        wait_until(lambda: bool(check()) or not self.is_alive, within=self._deadline - time.monotonic())


@pytest.fixture(scope="session", params=VERSIONS)
def rabbitmq_version(request) -> str:
    rabbits.ask_for(request.param)
    return request.param


@pytest.fixture(scope="session")
def play(request, broker) -> Iterator[dict[str, Scene]]:  # noqa: ARG001 - a play for each broker
    acts = (Scene.starts, Scene.works, Scene.has_worked, Scene.is_operated, Scene.is_killed, Scene.goes_on, Scene.ends)
    with ExitStack() as stack:
        scenes = {pool: Scene(stack.enter_context(stage(request)), pool) for pool in POOLS}
        for act in (*acts, Scene.has_ended):
            for scene in scenes.values():
                act(scene)
        yield scenes


@pytest.fixture(params=POOLS)
def scene(play, request) -> Scene:
    return play[request.param]
