"""One contender on a separate virtual host: its workers, its sender, and queues full of its retries."""

from __future__ import annotations

import json
import math
import os
import sys
import time
from contextlib import closing, contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from amqp import Message
from celery import Celery
from kombu.connection import Connection
from kombu.transport.native_delayed_delivery import calculate_routing_key

from benchmarks.compare.slots import Counter
from celery_dlx_retry.testing.sandbox import Sandbox

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.compare.contenders import Contender
    from benchmarks.compare.gauge import Gauge
    from benchmarks.compare.rabbit import Rabbit, Vhost

ROOT = Path(__file__).parents[2]
WORKER = "worker"
# Publishes without a confirm yet. More than the kernel buffers while the broker throttles us would end the connection:
# py-amqp sets TCP_USER_TIMEOUT to a second.
WINDOW = 100
START_SECONDS = 60.0

_CAPTURED: dict[tuple[str, str, int], str] = {}
CONFIRM_SECONDS = 60.0


class TookTooLong(Exception):
    """Something did not come in time; the message says what."""


class Worker:
    """A worker in separate processes."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self.started_at = time.time()

    @property
    def pid(self) -> int:
        return self._sandbox.pid(WORKER) or 0

    def is_dead(self) -> bool:
        return not self.pid

    def wait_until_ready(self) -> None:
        wait_for(lambda: (self._sandbox.path / "ready").exists() or self.is_dead(), what="a worker")
        if self.is_dead():
            raise TookTooLong(f"a worker ended: {self._sandbox.said(f'{WORKER}.out')}")

    def kill(self) -> None:
        """``kill -9`` of the whole of it."""
        self._sandbox.kill(WORKER)


class Stage:
    """``queues`` are the work queues; the first is the default one."""

    def __init__(
        self, contender: Contender, vhost: Vhost, sandbox: Sandbox, *, queues: list[str], gauge: Gauge
    ) -> None:
        self.contender, self.vhost, self.rabbit, self.queues = contender, vhost, vhost.rabbit, queues
        self.gauge = gauge
        self._sandbox = sandbox
        self._folder = folder = sandbox.path
        #: How long a retry of ``bench.crowd`` waits.
        self.crowd_seconds = 20
        #: Without a limit, a worker takes all messages.
        self.has_prefetch_limit = contender.has_prefetch_limit
        self.app = Celery("sender", set_as_current=False)
        self.app.conf.update(contender.conf(vhost.url, queues))
        (folder / "notes").touch()
        Counter.make(folder / "counter")
        self._counter = Counter(folder / "counter")

    @contextmanager
    def worker(  # noqa: PLR0913
        self,
        pool: str = "prefork",
        *,
        queues: list[str] | None = None,
        tasks: int = 0,
        is_captured: bool = False,
        url: str = "",
        per_second: int = 0,
    ) -> Iterator[Worker]:
        """Start one with two places in its pool; it is killed afterwards. Only the floor can have a pace."""
        settings = {
            "contender": self.contender.key, "url": url or self.vhost.url, "pool": pool,
            "queues": queues or self.queues, "crowd_seconds": self.crowd_seconds,
            "has_prefetch_limit": self.has_prefetch_limit,
            "folder": str(self._folder), "concurrency": 1 if pool == "solo" else 2,
            "tasks": tasks, "is_captured": is_captured, "per_second": per_second,
        }  # fmt: skip
        command = [sys.executable, "-m", "benchmarks.compare.floor"]
        if self.contender.way != "raw":
            command = [
                *(sys.executable, "-m", "celery", "-A", "benchmarks.compare.project", "worker", "-P", pool),
                *("-c", str(settings["concurrency"]), "-l", "ERROR", "--without-mingle", "--without-gossip"),
            ]
        environment = {
            **os.environ,
            "BENCH_PROJECT": json.dumps(settings),
            "C_FORCE_ROOT": "1",
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        }
        (self._folder / "ready").unlink(missing_ok=True)
        worker = Worker(self._sandbox)
        self._sandbox.spawn(WORKER, command, environment)
        try:
            yield worker
        finally:
            worker.kill()

    def declare(self) -> None:
        """Declare the work queues, for a sender that starts before the first worker."""
        with Connection(self.vhost.url) as connection:
            for name in self.queues:
                self.contender.queue(name)(connection.default_channel).declare()

    def send(self, task: str, count: int = 1) -> None:
        """New tasks, evenly over the work queues."""
        with self.sender() as send:
            for number in range(count):
                send(task, queue=self.queues[number % len(self.queues)])

    @contextmanager
    def sender(self) -> Iterator[Callable[..., None]]:
        """Sends one task at a time over a connection that stays."""
        with self.app.connection_for_write() as connection, self.app.amqp.Producer(connection) as producer:

            def send(task: str, *args: Any, queue: str = self.queues[0]) -> None:
                route = {"exchange": queue, "routing_key": queue}
                self.app.send_task(f"bench.{task}", args, **route, producer=producer, declare=())

            yield send

    def ready(self, queue: str) -> int:
        """Return how many messages of a queue are ready."""
        with Connection(self.vhost.url) as connection:
            return int(connection.default_channel.queue_declare(queue, passive=True).message_count)

    def runs(self) -> int:
        """How often tasks ran that count."""
        return self._counter.total()

    def notes(self, kind: str) -> list[float]:
        """What tasks noted so far."""
        whole = (self._folder / "notes").read_text().rpartition("\n")[0]
        pairs = (line.split() for line in whole.splitlines())
        return [float(value) for found, value in pairs if found == kind]

    def forget(self) -> None:
        """Drop all notes."""
        (self._folder / "notes").write_text("")

    def captured(self, task: str) -> dict[str, Any]:
        """A retry of this task as it goes over the wire, whichever virtual host it is in."""
        key = (self.contender.key, task, self.crowd_seconds)
        if key not in _CAPTURED:
            file = self._folder / f"bench.{task}.json"
            with self.worker("solo", is_captured=True) as worker:
                worker.wait_until_ready()
                self.send(task)
                wait_for(file.exists, what="a retry")
            _CAPTURED[key] = file.read_text()
        return json.loads(_CAPTURED[key])  # type: ignore[no-any-return]


@contextmanager
def stage(rabbit: Rabbit, contender: Contender, *, gauge: Gauge, queues: int = 1) -> Iterator[Stage]:
    """All of it is gone afterwards."""
    with rabbit.vhost() as vhost, closing(Sandbox("bench")) as sandbox:
        it = Stage(contender, vhost, sandbox, queues=[f"work{number}" for number in range(queues)], gauge=gauge)
        it.declare()
        yield it


def fill(url: str, retry: dict[str, Any], count: int, *, queue: str = "", seconds: float = 0.0) -> None:
    """Publish copies of a captured retry, each with a new id; return when all are confirmed.

    With ``seconds`` the first argument of each is when it is due; with ``queue`` they come back there. On Celery's
    ladder all are due in the same second, as they can be; a lane gives them back at the pace at which it got them.
    """
    properties = dict(retry["properties"])
    headers = properties.pop("application_headers")
    body, routing_key = json.loads(retry["body"]), retry["routing_key"]
    is_native = retry["exchange"].startswith("celery_delayed")
    way, _, work_queue = routing_key.rpartition(".")
    queue = queue or work_queue
    # The routing key of a lane, and of a rung of Celery's ladder, ends in the work queue.
    routing_key = f"{way}.{queue}" if way else queue
    start = time.time()
    unconfirmed: set[int] = set()

    def on_ack(tag: int, multiple: bool) -> None:  # noqa: FBT001 - py-amqp's signature
        unconfirmed.difference_update({each for each in unconfirmed if each <= tag} if multiple else {tag})

    with Connection(url) as connection:
        channel = connection.channel()
        channel.confirm_select()
        channel.events["basic_ack"].add(on_ack)
        for number in range(1, count + 1):
            headers["id"] = properties["correlation_id"] = str(uuid4())
            if seconds:
                now = time.time()
                wait = max(1, math.ceil(start + seconds - now)) if is_native else seconds
                body[0][0] = now + wait
                if is_native:
                    routing_key = calculate_routing_key(wait, queue)
                if headers.get("eta"):
                    headers["eta"] = datetime.fromtimestamp(now + wait, timezone.utc).isoformat()
            unconfirmed.add(number)
            channel.basic_publish(
                Message(json.dumps(body), application_headers=headers, **properties),
                exchange=retry["exchange"], routing_key=routing_key, mandatory=True,
            )  # fmt: skip
            while len(unconfirmed) > WINDOW:
                connection.drain_events(timeout=CONFIRM_SECONDS)
        while unconfirmed:
            connection.drain_events(timeout=CONFIRM_SECONDS)


def wait_for(check: Callable[[], bool], *, what: str, within: float = START_SECONDS, every: float = 0.05) -> None:
    """Poll until it is so."""
    deadline = time.monotonic() + within
    while not check():
        if time.monotonic() > deadline:
            raise TookTooLong(f"{what}: not within {within:.0f} s")
        time.sleep(every)  # noqa: TID251 - another process can only be polled
