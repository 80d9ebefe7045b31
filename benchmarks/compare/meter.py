"""What worker and broker use from here on, set right for how slow the machine was meanwhile."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.compare import machine

if TYPE_CHECKING:
    from benchmarks.compare.stage import Stage


@dataclass(frozen=True, slots=True, kw_only=True)
class Used:
    """CPU as it would be at the machine's best; as it was, it is ``slowness`` times as much."""

    worker_seconds: float
    broker_seconds: float
    slowness: float


class Meter:
    """Starts when it is made."""

    def __init__(self, stage: Stage, pid: int) -> None:
        self._stage, self._pid = stage, pid
        self._reading = stage.gauge.read()
        self._before = self._now()

    def read(self) -> Used:
        """Since then."""
        worker, broker = (now - then for now, then in zip(self._now(), self._before, strict=True))
        slowness = self._stage.gauge.slowness_since(self._reading)
        return Used(worker_seconds=worker / slowness, broker_seconds=broker / slowness, slowness=slowness)

    def _now(self) -> tuple[float, float]:
        return machine.cpu_seconds(self._pid), self._stage.rabbit.cpu_seconds()
