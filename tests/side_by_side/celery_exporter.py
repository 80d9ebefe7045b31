"""celery-exporter of Dani Hodovic, in an environment of its own: it asks for older libraries than we test with."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from pathlib import Path

#: On PyPI the project has this name. ``celery-exporter`` is another project there, and ended in 2021.
PACKAGE = "prometheus-exporter-celery"
VERSION = "0.11.2"
FOLDER = Path(__file__).parents[2] / "build" / "celery-exporter"
#: The package has no command.
COMMAND = "from src.cli import cli; cli(auto_envvar_prefix='CE')"


def command(*options: str) -> list[str]:
    """Return the command line; install the exporter if it is not there."""
    return [str(_python()), "-c", COMMAND, *options]


def _python() -> Path:
    python, done = FOLDER / "bin" / "python", FOLDER / f"{PACKAGE}-{VERSION}-py{sys.version_info.minor}"
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER.parent / "celery-exporter.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two test processes may want it at the same time
        if not done.exists():
            subprocess.run([sys.executable, "-m", "venv", "--clear", FOLDER], check=True, stdout=sys.stderr)
            install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--ignore-requires-python"]
            subprocess.run([python, *install, f"{PACKAGE}=={VERSION}"], check=True, stdout=sys.stderr)
            done.touch()
    return python
