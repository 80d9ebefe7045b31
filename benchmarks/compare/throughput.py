"""Retries per second through one worker, and the CPU of one: tasks that are retried for ever, and a window of time."""

from __future__ import annotations

import time
from dataclasses import dataclass

from benchmarks.compare.meter import Meter
from benchmarks.compare.stage import Stage, TookTooLong, wait_for


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """CPU in ms for each run: its delivery, the failure, the publish of the retry, the wait, the return.

    It is set right for ``slowness``: how slow the machine was. ``per_second`` is as the clock showed it.
    """

    per_second: float
    worker_ms: float
    broker_ms: float
    slowness: float


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
    meter = Meter(stage, pid)
    while time.monotonic() < start + seconds and (last is None or stage.runs() < 0.95 * last):
        time.sleep(0.05)  # noqa: TID251 - the length of the window
    runs, took = stage.runs() - first, time.monotonic() - start
    used = meter.read()
    if not runs:
        raise TookTooLong(f"a run: none in {took:.0f} s")
    return Rate(
        per_second=runs / took,
        worker_ms=1000 * used.worker_seconds / runs,
        broker_ms=1000 * used.broker_seconds / runs,
        slowness=used.slowness,
    )
