"""Start a real worker in its own processes, wait until it is ready, and end it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

from celery_dlx_retry.testing.sandbox import wait_until
from celery_dlx_retry.testing.worker_process import is_ready

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

READY_SECONDS = 30.0
STOP_SECONDS = 15.0


def celery(app: str, *words: str) -> list[str]:
    """The command ``celery -A app …`` with this Python."""
    return [sys.executable, "-m", "celery", "-A", app, *words]


def start_worker(command: list[str], *, log: Path, environment: Mapping[str, str], cwd: Path | None = None) -> Worker:
    """Start a worker that writes to this log; it leads a process group."""
    with log.open("wb") as out:
        process = subprocess.Popen(
            command,
            cwd=cwd,
            env={**environment, "C_FORCE_ROOT": "1"},
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return Worker(process, log)


class Worker:
    """A ``celery worker`` process and its log."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self._log = log

    @property
    def log(self) -> str:
        """Everything that it has written so far."""
        return self._log.read_text(errors="replace")

    @property
    def is_ready(self) -> bool:
        """Whether it has said so."""
        return is_ready(self._log)

    @property
    def is_alive(self) -> bool:
        """Whether its main process runs."""
        return self.process.poll() is None

    def wait_until_ready(self, *, within: float = READY_SECONDS) -> Worker:
        """Return when it consumes; fail with its log if it ends or takes too long."""
        came = wait_until(lambda: self.is_ready or not self.is_alive, within=within)
        if not (came and self.is_alive):
            raise AssertionError(f"No worker is ready after {within:g} s:\n{self.log}")
        return self

    def kill(self) -> None:
        """``kill -9`` of the whole worker, its pool included, as the kernel's OOM killer or a power cut would."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(10)

    def stop(self) -> int:
        """End it warmly, or kill it if that takes too long; return its exit code."""
        if self.is_alive:
            self.process.terminate()
            try:
                self.process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self.kill()
        return self.process.returncode
