"""``celery dlx …`` through Celery's own command line: in this process, which saves a second each, or in another."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

from celery.bin.celery import celery
from click.testing import CliRunner, Result

from tests.workers import celery as celery_command

PROJECTS = Path(__file__).parents[1] / "worker"


def invoke(*words: str, **environment: str) -> Result:
    """Run ``celery …``; nothing of it stays in this process's environment, and no error is a traceback."""
    runner = CliRunner(env={"CELERY_BROKER_URL": None, "DLX_MANAGEMENT_URL": None, **environment})
    with patch.dict(os.environ):  # Celery puts --result-backend and others into it
        done = runner.invoke(celery, list(words))
    assert done.exception is None or isinstance(done.exception, SystemExit), repr(done.exception)
    return done


class CommandLine:
    """The commands of one project, with the HTTP API of its broker."""

    def __init__(self, project: Any, broker: Any, *, module: str = "project") -> None:
        self._project, self._module = project, module
        self._management = {"DLX_MANAGEMENT_URL": broker.management_url or ""}
        self._loaded = ""

    def __call__(self, *words: str, code: int = 0) -> str:
        """What it prints; it must end with this exit code."""
        done = invoke("-A", self._app(), "dlx", *words, **self._management)
        assert done.exit_code == code, done.output
        return done.output

    def json(self, *words: str, code: int = 0) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self(*words, "--json", code=code).splitlines() if line.startswith("{")]

    def start(self, *words: str, stdout: int = subprocess.PIPE) -> subprocess.Popen[str]:
        """As a process, for signals."""
        return subprocess.Popen(
            self.command(*words),
            env=self.environment(),
            text=True,
            stdout=stdout,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
        )

    def command(self, *words: str) -> list[str]:
        return celery_command(self._module, "dlx", *words)

    def environment(self) -> dict[str, str]:
        return {**self._project.environment(), **self._management, "COLUMNS": "160", "TERM": "xterm"}

    def _app(self) -> str:
        """The project as a module of its own: it reads its configuration when it is loaded."""
        if not self._loaded:
            module = ModuleType(f"{self._module}_{self._project.prefix}")
            before = os.environ.get("PROJECT_CONF")
            os.environ["PROJECT_CONF"] = json.dumps(self._project.conf)
            try:
                exec((PROJECTS / f"{self._module}.py").read_text(), module.__dict__)  # noqa: S102 - our own file
            finally:
                os.environ.pop("PROJECT_CONF") if before is None else os.environ.update(PROJECT_CONF=before)
            sys.modules[module.__name__] = module
            self._loaded = module.__name__
        return self._loaded

    def close(self) -> None:
        if self._loaded:
            sys.modules.pop(self._loaded).app.close()
