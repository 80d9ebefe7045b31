"""What came of a session of the matrix, and what it ran on, as JSON: ``DLX_TEST_RECORD=file``."""

from __future__ import annotations

import json
import os
import platform
import time
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

RECORD = "DLX_TEST_RECORD"
PACKAGES = ("celery", "kombu", "amqp", "billiard", "gevent")


class Record:
    """A pytest plugin; whoever starts a RabbitMQ tells it the version."""

    def __init__(self, file: Path, *, is_again: bool) -> None:
        self._file, self._is_again = file, is_again
        self._began = time.time()
        self._tests: dict[str, str] = {}
        self.rabbitmq: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the worst of set-up, call and tear-down."""
        if report.when == "call" or report.outcome != "passed":
            self._tests[report.nodeid] = report.outcome

    def pytest_sessionfinish(self) -> None:
        """Write it, also of a session that was interrupted."""
        record = {
            "session": self._file.stem,
            "began": datetime.fromtimestamp(self._began, timezone.utc).isoformat(timespec="seconds"),
            "seconds": round(time.time() - self._began),
            "python": platform.python_version(),
            **{name: version(name) for name in PACKAGES},
            "rabbitmq": sorted(self.rabbitmq),
            "tests": self._tests,
        }
        if self._is_again:
            first = json.loads(self._file.read_text())
            again = sorted({*first.get("again", ()), *self._tests})
            record = {**first, "tests": first["tests"] | self._tests, "again": again}
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._file.write_text(json.dumps(record, indent=1) + "\n")


def asked_for(*, is_again: bool) -> Record | None:
    """The plugin, if the environment asks for it; with ``--last-failed`` it adds to what it recorded before."""
    return Record(Path(os.environ[RECORD]), is_again=is_again) if os.environ.get(RECORD) else None
