"""A real worker for a test: a process of its own, which records where the test reads."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from celery_dlx_retry.errors import DLXError
from celery_dlx_retry.testing.django import of_this_test
from celery_dlx_retry.testing.sandbox import Sandbox, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

#: Where a worker that loads ``celery_dlx_retry.testing.worker_plugin`` records.
RECORDS = "DLX_TEST_RECORDS"
START_SECONDS = 30.0
FIRST_LINES, LAST_LINES = 4, 6
STOP_SECONDS = 10.0


class NoWorker(DLXError):
    """``app``, ``said``."""

    sentence = "No worker could be started with -A {app}. It said:\n{said}"


def worker_command(app: str, *flags: str, broker: str | None = None) -> list[str]:
    """Return the command of a worker that does not talk to other workers."""
    options = ("-A", app, *(("-b", broker) if broker else ()))
    quiet = ("--loglevel=INFO", "--without-gossip", "--without-mingle")
    return [sys.executable, "-m", "celery", *options, "worker", *quiet, *flags]


def worker_environment(more: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a worker that finds modules where this process does."""
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),  # noqa: PTH109 - as Python reads it
        "C_FORCE_ROOT": "1",  # containers run as root, and Celery refuses that
        **more,
    }


@contextmanager
def running_worker(app: str, *flags: str, records: Path, broker: str | None) -> Iterator[None]:
    """Run ``celery -A app worker`` until the block ends; it is ready when the block begins."""
    plugin = "--include=celery_dlx_retry.testing.worker_plugin"
    command = worker_command(app, plugin, "--concurrency=2", *flags, broker=broker)
    environment = worker_environment({RECORDS: str(records), **of_this_test()})
    sandbox = Sandbox("worker")
    try:
        sandbox.spawn("worker", command, environment)
        output = sandbox.path / "worker.out"
        wait_until(lambda: is_ready(output) or not sandbox.pid("worker"), within=START_SECONDS)
        if not is_ready(output):
            raise NoWorker(app=app, said=telling(output.read_text(errors="replace")))
        yield
        sandbox.terminate("worker", within=STOP_SECONDS)
    finally:
        sandbox.close()


def is_ready(log: Path) -> bool:
    """Return whether the log of a worker, of level INFO, says that the worker is ready."""
    return log.exists() and " ready." in log.read_text(errors="replace")


def telling(output: str) -> str:
    """The lines that say why: from the first error on, and of a long traceback its ends."""
    lines = [f"  {line}" for line in output.splitlines() if line.strip()]
    first = next((number for number, line in enumerate(lines) if "error" in line.lower()), -LAST_LINES)
    lines = lines[first:]
    if len(lines) > FIRST_LINES + LAST_LINES:
        lines[FIRST_LINES:-LAST_LINES] = ["  …"]
    return "\n".join(lines) or "  nothing"
