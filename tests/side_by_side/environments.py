"""Environments for tools that ask for other libraries than our tests, or that would join every pytest."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from pathlib import Path

BUILD = Path(__file__).parents[2] / "build"


def python_with(name: str, *requirements: str) -> Path:
    """Return the Python of an environment with these packages; make it if it is not there."""
    folder = BUILD / name
    python, done = folder / "bin" / "python", folder / "requirements.txt"
    wanted = "\n".join((sys.version, *requirements))
    BUILD.mkdir(exist_ok=True)
    with (BUILD / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two test processes may want it at the same time
        if not done.exists() or done.read_text() != wanted:
            _run([sys.executable, "-m", "venv", "--clear", str(folder)])
            install = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--ignore-requires-python")
            _run([str(python), *install, *requirements])
            done.write_text(wanted)
    return python


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise AssertionError(f"{' '.join(command)}: {done.stderr or done.stdout}")
