"""One project, its workers and its sender for all tests of a module: each test sends its own tasks and looks at them.

A worker takes seconds to start, a claim about one task takes a tenth of that.
"""

from __future__ import annotations

import json
import secrets
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from harness import Project

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from celery import Celery


class Stage(Project):
    """A project that keeps one app to send with, so that its connections can be closed."""

    _sender: Celery | None = None

    @property
    def results(self) -> Path:
        """A folder for a result backend of files."""
        folder = self._folder / "results"
        folder.mkdir(exist_ok=True)
        return folder

    @property
    def app(self) -> Celery:
        if self._sender is None:
            self._sender = super().app
        return self._sender

    def records(self, **wanted: Any) -> list[dict[str, Any]]:
        # A reader may see the first half of a line that is being written.
        whole = self.records_file.read_text().rpartition("\n")[0]
        rows = [json.loads(line) for line in whole.splitlines()]
        return [row for row in rows if all(row.get(key) == value for key, value in wanted.items())]

    def close(self) -> None:
        for worker in self._running:
            if worker.process.poll() is None:
                worker.kill()
        if self._sender is not None:
            backend = self._sender.backend
            if consumer := getattr(backend, "result_consumer", None):
                consumer.stop()
                consumer._pubsub = None  # a late AsyncResult.__del__ would open it again
            if client := getattr(backend, "client", None):
                client.connection_pool.disconnect()
            self._sender.close()


@contextmanager
def stage(request: Any, **conf: Any) -> Iterator[Stage]:
    """Make the project of a module-scoped fixture, whose ``request`` it takes; ends what was started in it."""
    broker, redis_url, management, folders = (
        request.getfixturevalue(name) for name in ("broker", "redis_url", "management", "tmp_path_factory")
    )
    prefix = f"t{secrets.token_hex(4)}"
    it = Stage(url=broker.url, backend=redis_url, prefix=prefix, folder=folders.mktemp(prefix))
    it.conf |= conf
    it._running = []
    try:
        yield it
    finally:
        it.close()
        if management:
            management.delete_all(prefix)
