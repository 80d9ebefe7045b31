"""The loop of the gauge, on one core, over and over; only Python's own library, for it runs alone.

python -I -S benchmarks/compare/loop.py FILE CORE    # ends with who started it
"""

from __future__ import annotations

import mmap
import os
import struct
import sys
import time
from pathlib import Path

TURNS = 10_000
PAUSE_SECONDS = 0.02
#: Of one core: CPU seconds and loops so far, and the least that one took.
SLOT = struct.Struct("=ddd")


def work(path: Path, core: int) -> None:
    """Loop and write it down, as long as the parent runs."""
    parent = os.getppid()
    os.sched_setaffinity(0, {core})
    place, slots = core * SLOT.size, mapped(path)
    used, loops, least = 0.0, 0, float("inf")
    while os.getppid() == parent:
        start = time.process_time()
        number = 0
        for each in range(TURNS):
            number += each * each
        took = time.process_time() - start
        used, loops, least = used + took, loops + 1, min(least, took)
        SLOT.pack_into(slots, place, used, loops, least)
        time.sleep(PAUSE_SECONDS)  # noqa: TID251 - most of the core is for others


def mapped(path: Path) -> mmap.mmap:
    """The file that both sides have in memory."""
    with path.open("r+b") as file:
        return mmap.mmap(file.fileno(), 0)


if __name__ == "__main__":
    work(Path(sys.argv[1]), int(sys.argv[2]))
