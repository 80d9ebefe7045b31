"""The app whose worker is traced: each process appends a line to a file for each function of ours that it enters."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from celery import Celery, signals

import celery_dlx_retry
from celery_dlx_retry import DLXRetryTask, Fixed

if TYPE_CHECKING:
    from types import FrameType

PACKAGE = f"{Path(celery_dlx_retry.__file__).parent}{os.sep}"
FOLDER = Path(os.environ["DLX_PATHS_FOLDER"])

app = Celery("paths", broker=os.environ["DLX_PATHS_BROKER"])
app.conf.update(
    task_default_queue="paths",
    task_ignore_result=True,
    worker_prefetch_multiplier=1,
    dlx_prefix="paths",
    dlx_queue_type="classic",
)


@app.task(name="paths.retried", base=DLXRetryTask, policy=[600])
def retried() -> None:
    """Fail, with a retry left."""
    raise ConnectionError("no answer")


@app.task(name="paths.exhausted", base=DLXRetryTask, policy=Fixed(600, retries=0))
def exhausted() -> None:
    """Fail, without a retry left."""
    raise ConnectionError("no answer")


@app.task(name="paths.slow", base=DLXRetryTask, policy=[600], time_limit=1)
def slow() -> None:
    """Run until the hard time limit."""
    while True:
        pass


@app.task(name="paths.done", base=DLXRetryTask, policy=[600])
def done() -> None:
    """Succeed."""


def start_trace(**_: Any) -> None:
    """Write one line for each call of a function of ours in this thread."""
    path = FOLDER / f"{os.getpid()}.trace"
    out = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def trace(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            name = f"{frame.f_code.co_filename.removeprefix(PACKAGE)}:{frame.f_code.co_name}\n"
            os.write(out, name.encode())

    sys.setprofile(trace)


signals.worker_process_init.connect(start_trace, weak=False)
signals.worker_ready.connect(start_trace, weak=False)
