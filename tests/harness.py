"""Real workers in processes of their own, as worker and acceptance tests start them."""

from __future__ import annotations

import json
import os
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from amqp.exceptions import NotFound
from celery import Celery
from kombu import pools
from kombu.connection import Connection

from celery_dlx_retry.broker.dead_letters import browse
from celery_dlx_retry.settings import Settings
from celery_dlx_retry.topology.lanes import lane_ms
from celery_dlx_retry.topology.names import Names, WorkQueue
from tests.workers import celery, start_worker

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.workers import Worker


class Project:
    """The project of ``project.py`` under names of its own."""

    def __init__(self, *, url: str, backend: str, prefix: str, folder: Path) -> None:
        self.url, self.prefix, self._folder = url, prefix, folder
        self.queue = f"{prefix}.work"
        self.conf: dict[str, Any] = {
            "broker_url": url,
            "result_backend": backend,
            "task_default_queue": self.queue,
            "dlx_prefix": prefix,
        }
        self.records_file = folder / "records"
        self.records_file.touch()
        #: What most tests can do without, and is faster so.
        self.without = ("--without-mingle", "--without-gossip")
        self._workers = 0
        self._running: list[Worker] = []
        self._apps: dict[str, Celery] = {}

    def close(self) -> None:
        """End every worker, and what the senders hold open."""
        for worker in self._running:
            if worker.is_alive:
                worker.kill()
        for app in self._apps.values():
            if consumer := getattr(app.backend, "result_consumer", None):
                consumer.stop()
                consumer._pubsub = None  # a late AsyncResult.__del__ would open it again
            if pool := getattr(getattr(app.backend, "client", None), "connection_pool", None):
                pool.disconnect()
            app.close()
        pools.reset()  # all apps on a broker share them, and the next test may have restarted it

    @property
    def results(self) -> Path:
        """A folder for a result backend of files."""
        folder = self._folder / "results"
        folder.mkdir(exist_ok=True)
        return folder

    @property
    def app(self) -> Celery:
        """An app that sends, as a web process does; it knows no task."""
        key = json.dumps(self.conf, default=repr)
        if key not in self._apps:
            self._apps[key] = Celery("sender", config_source=dict(self.conf), set_as_current=False)
        return self._apps[key]

    def send(self, name: str, *args: Any, app: Celery | None = None, **options: Any) -> Any:
        """``send_task("project.<name>")``; keyword arguments of the task go in ``kwargs=``."""
        return (app or self.app).send_task(f"project.{name}", args, **options)

    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "PROJECT_CONF": json.dumps(self.conf),
            "PROJECT_RECORDS": str(self.records_file),
            "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent / "worker"), os.environ.get("PYTHONPATH", "")]),
            "C_FORCE_ROOT": "1",
            "PYTHONWARNINGS": "ignore",
        }

    def start(self, *flags: str, pool: str = "prefork", concurrency: int = 2, module: str = "project") -> Worker:
        """Start a worker and leave it running; the fixture ends it."""
        self._workers += 1
        log = self._folder / f"worker-{self._workers}.log"
        flags = (
            *("-l", "INFO", *self.without),
            *("-P", pool, "-c", str(concurrency), "-n", f"w{self._workers}.{self.prefix}@h"),
            *flags,
        )
        worker = start_worker(celery(module, "worker", *flags), log=log, environment=self.environment())
        self._running.append(worker)
        return worker

    @contextmanager
    def worker(self, *flags: str, **options: Any) -> Iterator[Worker]:
        """A worker that is ready, ended afterwards."""
        worker = self.start(*flags, **options).wait_until_ready()
        try:
            yield worker
        finally:
            worker.stop()

    def celery(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run ``celery -A project …`` to its end."""
        environment = {**self.environment(), **environment}
        return subprocess.run(
            celery("project", *arguments), env=environment, capture_output=True, text=True, check=False, timeout=60
        )

    def records(self, **wanted: Any) -> list[dict[str, Any]]:
        """What tasks wrote, in order, as far as it has these values."""
        # A reader may see the first half of a line that is being written.
        whole = self.records_file.read_text().rpartition("\n")[0]
        rows = [json.loads(line) for line in whole.splitlines()]
        return [row for row in rows if all(row.get(key) == value for key, value in wanted.items())]

    def depth(self, queue: str) -> int | None:
        """Messages ready in a queue; None if it does not exist."""
        with Connection(self.url) as connection:
            try:
                return int(connection.default_channel.queue_declare(queue, passive=True).message_count)
            except NotFound:
                return None

    def dead(self, queue: str | None = None) -> list[Any]:
        """The dead letters of a work queue."""
        name = self.names.dead_letters(queue or self.queue)
        if self.depth(name) is None:
            return []
        with Connection(self.url) as connection:
            return list(browse(connection, name))

    @property
    def names(self) -> Names:
        """Of all that its workers make."""
        return Names.of(Settings.read({key: value for key, value in self.conf.items() if key.startswith("dlx_")}))

    def lane(self, delay_ms: int) -> str:
        """The wait queue of the work queue for exactly this delay."""
        return self.names.lane(WorkQueue(name=self.queue), delay_ms)

    def grid_lane(self, delay_ms: int) -> str:
        """The wait queue that a delay takes which no task announced."""
        settings = Settings()
        length = lane_ms(delay_ms, exact=frozenset(), ratio=settings.grid, limit_ms=settings.max_delay_ms)
        return self.lane(length)


@pytest.fixture
def project(broker, redis_url, prefix, tmp_path) -> Iterator[Project]:
    it = Project(url=broker.url, backend=redis_url, prefix=prefix, folder=tmp_path)
    yield it
    it.close()
