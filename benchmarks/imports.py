"""What it costs a process that only sends tasks to import this package, beside Celery alone.

python -m benchmarks.imports
"""

from __future__ import annotations

import os
import subprocess
import sys

ROUNDS = 20
CELERY = "from celery import Celery, Task; Celery, Task"
OURS = f"{CELERY}; from celery_dlx_retry import DLXRetryTask"
TIMED = "import time; begin = time.process_time(); {code}; print(time.process_time() - begin)"


def main() -> None:
    """Print the CPU time of both, as the best of several rounds in turn, and their ratio."""
    celery, ours = [], []
    for _ in range(ROUNDS):
        celery.append(milliseconds(CELERY))
        ours.append(milliseconds(OURS))
    alone, both = min(celery), min(ours)
    more = f"{both - alone:+.0f} ms, x {both / alone:.2f}"
    print(f"Celery alone {alone:.0f} ms, with celery_dlx_retry {both:.0f} ms: {more}")


def milliseconds(code: str) -> float:
    """Return the CPU time of this code in a new process."""
    # Python writes the bytecode in the first round; without it each round would measure the compiler.
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, "-c", TIMED.format(code=code)]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)  # noqa: S603 - our own code
    return float(run.stdout) * 1000


if __name__ == "__main__":
    main()
