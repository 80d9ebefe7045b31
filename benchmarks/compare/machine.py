"""What the kernel knows of a process and its children, and what this machine is."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from pathlib import Path

PROC = Path("/proc")
TICKS = os.sysconf("SC_CLK_TCK")


def dead_letter_key(pid: int) -> list[int]:
    """Return a process and its descendants."""
    children: dict[int, list[int]] = {}
    for entry in PROC.iterdir():
        if entry.name.isdigit() and (fields := _stat(int(entry.name))):
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found = [pid]
    for each in found:
        found += children.get(each, [])
    return found


def cpu_seconds(pid: int) -> float:
    """What a process and its children have used so far, those that ended too."""
    return sum(sum(map(int, fields[11:15])) for each in dead_letter_key(pid) if (fields := _stat(each))) / TICKS


def memory_mb(pid: int) -> float:
    """A process and its children; what they share is counted once."""
    return sum(map(_proportional_kb, dead_letter_key(pid))) / 1000


def _stat(pid: int) -> list[str]:
    """Fields from the third on, the state; empty if the process is gone."""
    try:
        return (PROC / f"{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _proportional_kb(pid: int) -> int:
    try:
        lines = (PROC / f"{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)


def described() -> dict[str, str]:
    """The machine and what runs on it, as the reader of a figure wants to know it."""
    names = ("celery", "kombu", "amqp", "celery-dlx-retry")
    processors = (PROC / "cpuinfo").read_text().splitlines()
    models = [line.partition(":")[2].strip() for line in processors if "model name" in line]
    return {
        "CPU": models[0] if models else platform.machine(),
        "cores": str(os.cpu_count()),
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 1e9:.0f} GB",
        "system": f"{platform.system()} {platform.release()}",
        "Python": platform.python_version(),
        **{name: version(name) for name in names},
    }
