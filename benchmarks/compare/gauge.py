"""How slow the machine is at this moment: the same small loop on each core, over and over, beside what is measured.

On a shared machine a neighbour on the other half of a core makes everything take nearly twice its CPU time, and comes
and goes within seconds: more than any difference that we look for. So CPU times are set right by this.
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from benchmarks.compare import loop
from benchmarks.compare.loop import SLOT
from benchmarks.compare.stage import TookTooLong, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

Reading = list[tuple[float, float, float]]


class Gauge:
    """Reads what the loops have written."""

    def __init__(self, path: Path, cores: list[int]) -> None:
        self._map, self._cores = loop.mapped(path), cores
        self._best_seconds = 0.0

    def settle(self) -> None:
        """Compare every later reading with the least time so far."""
        wait_for(lambda: all(loops for _, loops, _ in self.read()), what="the gauge")
        self._best_seconds = min(least for *_, least in self.read())

    def read(self) -> Reading:
        """As it is now."""
        return [SLOT.unpack_from(self._map, core * SLOT.size) for core in self._cores]

    def slowness_since(self, before: Reading) -> float:
        """How many times the least the loop has taken since that reading, on all cores together."""
        used, loops = (sum(new[i] - old[i] for new, old in zip(self.read(), before, strict=True)) for i in (0, 1))
        if not loops:
            raise TookTooLong("the gauge does not move")
        return used / loops / self._best_seconds


@contextmanager
def gauge() -> Iterator[Gauge]:
    """A process on each core, which takes a few hundredths of it."""
    cores = sorted(os.sched_getaffinity(0))
    with TemporaryDirectory(prefix="bench-") as folder:
        path = Path(folder) / "gauge"
        path.write_bytes(bytes(SLOT.size * (cores[-1] + 1)))
        command = [sys.executable, "-I", "-S", loop.__file__, str(path)]
        loops: list[subprocess.Popen[bytes]] = []
        try:
            loops += (subprocess.Popen([*command, str(core)]) for core in cores)  # noqa: S603
            yield Gauge(path, cores)
        finally:
            for each in loops:
                each.kill()
                each.wait()
