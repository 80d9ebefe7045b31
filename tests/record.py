"""What came of a session of the matrix, and what it ran on, as JSON: ``DLX_TEST_RECORD=file``."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import time
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from rabbits import RECORD

PACKAGES = ("celery", "kombu", "amqp", "billiard", "gevent")


class Record:
    """A pytest plugin; whoever starts a RabbitMQ tells it the version."""

    def __init__(self, file: Path, config: pytest.Config) -> None:
        self._file, self._config = file, config
        self._began = time.time()
        self._tests: dict[str, str] = {}
        self.rabbitmq: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the worst of set-up, call and tear-down."""
        if report.when == "call" or report.outcome != "passed":
            self._tests[report.nodeid] = report.outcome

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """One of several processes has come to its end."""
        self.rabbitmq.update(getattr(node, "workeroutput", {}).get("rabbitmq", ()))

    def pytest_sessionfinish(self) -> None:
        """Write it, also of a session that was interrupted; of several processes, the one that started them does."""
        if hasattr(self._config, "workeroutput"):
            self._config.workeroutput["rabbitmq"] = sorted(self.rabbitmq)
            return
        record = {
            "session": self._file.stem,
            "began": datetime.fromtimestamp(self._began, timezone.utc).isoformat(timespec="seconds"),
            "seconds": round(time.time() - self._began),
            "python": platform.python_version(),
            **{name: version(name) for name in PACKAGES},
            "rabbitmq": sorted(self.rabbitmq),
            "commit": commit(),
            "tests": dict(sorted(self._tests.items())),
        }
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._file.write_text(json.dumps(record, indent=1) + "\n")


def asked_for(config: pytest.Config) -> Record | None:
    """The plugin, if the environment asks for it."""
    return Record(Path(os.environ[RECORD]), config) if os.environ.get(RECORD) else None


def commit() -> str:
    """Of what is tested here; with a ``+`` if there is more than what is committed."""
    root = Path(__file__).parents[1]

    def git(*words: str) -> str:
        told = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=False)
        return told.stdout.strip()

    is_more = git("status", "--porcelain", "--", "celery_dlx_retry", "tests", "pyproject.toml")
    return git("rev-parse", "--short", "HEAD") + ("+" if is_more else "")
