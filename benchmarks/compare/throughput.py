"""Retries per second through one worker, and the CPU of one: tasks that are retried for ever, and a window of time."""

from __future__ import annotations

import time
from dataclasses import dataclass

from benchmarks.compare import machine
from benchmarks.compare.stage import Stage, wait_for


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """CPU in ms for each run: its delivery, the failure, the publish of the retry, the wait, the return."""

    per_second: float
    worker_ms: float
    broker_ms: float


def measure(  # noqa: PLR0913
    stage: Stage, pool: str, *, task: str, crowd: int, warm: int, seconds: float, per_second: int = 0
) -> Rate:
    """``crowd`` tasks are sent before the worker starts, more than it can do in the second that a retry waits."""
    stage.send(task, crowd)
    with stage.worker(pool, per_second=per_second) as worker:
        worker.wait_until_ready()
        before = stage.runs()
        wait_for(lambda: stage.runs() >= before + warm, what="the first runs")
        return window(stage, worker.pid, seconds=seconds, last=crowd if task == "plain" else None)


def window(stage: Stage, pid: int, *, seconds: float, last: int | None = None) -> Rate:
    """Count for so long, or until so many have run."""
    first, start = stage.runs(), time.monotonic()
    worker, broker = machine.cpu_seconds(pid), stage.rabbit.cpu_seconds()
    while time.monotonic() < start + seconds and (last is None or stage.runs() < 0.95 * last):
        time.sleep(0.05)  # noqa: TID251 - the length of the window
    worker, broker = machine.cpu_seconds(pid) - worker, stage.rabbit.cpu_seconds() - broker
    runs, took = stage.runs() - first, time.monotonic() - start
    return Rate(per_second=runs / took, worker_ms=1000 * worker / max(runs, 1), broker_ms=1000 * broker / max(runs, 1))
