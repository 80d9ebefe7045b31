"""The app whose worker callgrind watches: each task is retried a number of times, and the last run stops the worker."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from celery import Celery, Task, signals

from celery_dlx_retry import DLXRetryTask, Fixed

TASKS, RETRIES = int(os.environ["RETRY_COST_TASKS"]), int(os.environ["RETRY_COST_RETRIES"])
KIND = os.environ["RETRY_COST_KIND"]
DONE = Path(os.environ["RETRY_COST_FOLDER"], f"done-{RETRIES}")
PADDING = int(os.environ["RETRY_COST_BYTES"])
DELAY_SECONDS = 0.2

app = Celery("retry_cost", broker=os.environ["RETRY_COST_BROKER"])
app.conf.update(
    task_default_queue=os.environ["RETRY_COST_QUEUE"],
    task_ignore_result=True,
    dlx_prefix=os.environ["RETRY_COST_QUEUE"],
    dlx_queue_type=os.environ["RETRY_COST_LANES"],
)
base = Task if KIND == "countdown" else DLXRetryTask


def finish() -> None:
    """Count the tasks that are done, and stop the worker at the last one."""
    descriptor = os.open(DONE, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(descriptor, b".")
    os.close(descriptor)
    if DONE.stat().st_size == TASKS:
        os.kill(int(DONE.with_name("worker.pid").read_text()), signal.SIGTERM)


if KIND == "policy":

    @app.task(name="retry_cost.loop", bind=True, base=base, policy=Fixed(DELAY_SECONDS, retries=None), max_retries=None)
    def loop(self: Any, _padding: str) -> None:
        """Fail until it has failed often enough."""
        if self.request.retries < RETRIES:
            raise ConnectionError("the bank does not answer")
        finish()

else:

    @app.task(name="retry_cost.loop", bind=True, base=base, default_retry_delay=DELAY_SECONDS, max_retries=None)
    def loop(self: Any, _padding: str) -> None:
        """Retry until it was retried often enough."""
        if self.request.retries < RETRIES:
            raise self.retry()
        finish()


if KIND == "listener":

    @signals.before_task_publish.connect(weak=False)
    def listen(**_: Any) -> None:
        """Listen to each publish, as tracing libraries do."""


@signals.worker_ready.connect(weak=False)
def note_pid(**_: Any) -> None:
    """Write down which process the last task must stop."""
    DONE.with_name("worker.pid").write_text(str(os.getpid()))


def send() -> None:
    """Send all tasks."""
    for _ in range(TASKS):
        loop.delay("x" * PADDING)


if __name__ == "__main__":
    send()
