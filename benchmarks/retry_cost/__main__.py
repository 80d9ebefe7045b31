"""Count the instructions that a whole retry takes in a real worker, and compare two checkouts.

python -m benchmarks.retry_cost                     # three minutes; needs valgrind
python -m benchmarks.retry_cost --against ../old    # and the same with the package of another checkout

callgrind counts what all processes of the worker do, from the delivery over the body to the acknowledgement.
It counts the same on a busy machine, where a clock does not.
A worker with many retries takes more instructions than one with few; the difference is the cost of the retries.
"""

from __future__ import annotations

import argparse
import os
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from statistics import median

from celery_dlx_retry.testing.rabbitmq import given
from tests.provision import provide

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
TASKS, FEW, MORE = 20, 5, 30
WITHIN_SECONDS = 600
COLLECTED = re.compile(r"Collected : (\d+)")
#: A name for each row: the kind of task, the type of the lanes, and the bytes of the argument.
ROWS = {
    "self.retry(), classic lanes": ("retry", "classic", 100),
    "self.retry(), quorum lanes": ("retry", "quorum", 100),
    "policy, quorum lanes": ("policy", "quorum", 100),
    "policy, 200 kB": ("policy", "quorum", 200_000),
    "a listener of before_task_publish": ("listener", "quorum", 100),
    "Celery's countdown": ("countdown", "classic", 100),
}


def collected(package: Path, url: str, row: str, *, pool: str, retries: int) -> int:
    """Run one worker under callgrind until its tasks are done; return the instructions of all its processes."""
    kind, lanes, padding = ROWS[row]
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(HERE / "project.py", Path(folder, "retry_cost_project.py"))
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join((folder, str(package))),
            "PYTHONHASHSEED": "0",
            "C_FORCE_ROOT": "1",
            "RETRY_COST_BROKER": url,
            "RETRY_COST_QUEUE": f"cost{secrets.token_hex(4)}",
            "RETRY_COST_FOLDER": folder,
            "RETRY_COST_KIND": kind,
            "RETRY_COST_LANES": lanes,
            "RETRY_COST_BYTES": str(padding),
            "RETRY_COST_TASKS": str(TASKS),
            "RETRY_COST_RETRIES": str(retries),
        }
        _run([sys.executable, "-m", "retry_cost_project"], folder, environment)
        worker = [sys.executable, "-m", "celery", "-A", "retry_cost_project", "worker", "--pool", pool, "-c", "1"]
        worker += ["--without-gossip", "--without-mingle", "--without-heartbeat", "-l", "ERROR"]
        watched = ["valgrind", "--tool=callgrind", "--trace-children=yes", "--callgrind-out-file=/dev/null", *worker]
        said = _run(watched, folder, environment)
    counts = [int(number) for number in COLLECTED.findall(said)]
    if not counts:
        raise SystemExit(f"callgrind counted nothing: {said.strip()[-800:]}")
    return sum(counts)


def _run(command: list[str], folder: str, environment: dict[str, str]) -> str:
    done = subprocess.run(  # noqa: S603 - our own project
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=WITHIN_SECONDS, check=False
    )
    if done.returncode:
        raise SystemExit(f"{command[0]} ended with {done.returncode}: {done.stderr.strip()[-800:]}")
    return done.stderr


def per_retry(package: Path, url: str, row: str, *, pool: str) -> float:
    """Return the thousands of instructions that one more retry takes."""
    few, more = (collected(package, url, row, pool=pool, retries=retries) for retries in (FEW, MORE))
    return (more - few) / (TASKS * (MORE - FEW)) / 1000


def main() -> None:
    """Print one line for each row; with two checkouts also their ratio, from alternating rounds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path, help="a checkout of this project to compare with")
    parser.add_argument("--only", choices=ROWS, action="append", help="this row alone; may be repeated")
    parser.add_argument("--pool", choices=("solo", "prefork"), default="prefork", help="default: %(default)s")
    parser.add_argument("--rounds", type=int, default=1, help="medians of so many rounds (default: %(default)s)")
    options = parser.parse_args()
    if shutil.which("valgrind") is None:
        raise SystemExit("valgrind is not installed, and callgrind is a part of it: apt-get install valgrind")
    packages = [ROOT, *([options.against.resolve()] if options.against else [])]
    print(f"{options.pool}, thousands of instructions for one retry")
    with closing(given("") or provide()) as broker:
        for row in options.only or ROWS:
            rounds = [
                [per_retry(each, broker.url, row, pool=options.pool) for each in packages]
                for _ in range(options.rounds)
            ]
            new, *old = (median(each) for each in zip(*rounds, strict=True))
            ratio = f"   against {old[0]:9,.0f}: {new / old[0]:.3f}" if old else ""
            print(f"{row:36} {new:9,.0f}{ratio}", flush=True)


if __name__ == "__main__":
    main()
