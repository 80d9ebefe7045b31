"""How many instructions each pure part of a retry takes: callgrind counts them, whatever else the machine does.

python -m benchmarks.instructions        # half a minute; needs valgrind
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from celery_dlx_retry.policy.decision import decide
from celery_dlx_retry.policy.policies import Exponential
from celery_dlx_retry.policy.reasons import Reason
from celery_dlx_retry.topology.lanes import lane_ms
from celery_dlx_retry.wire.dead_record import DeadRecord, with_record
from celery_dlx_retry.wire.header_size import size_of
from celery_dlx_retry.wire.headers import Failure, with_failure

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

ROOT = Path(__file__).parents[1]
FEW, MORE = 100, 600
COLLECTED = re.compile(r"Collected : (\d+)")
AT_MS, DELAY_MS, DAY_MS = 1_800_000_000_000, 37_000, 86_400_000
ANNOUNCED = frozenset({1_000, 10_000, 100_000})
POLICY = Exponential(1, factor=10, limit=500, retries=5)
ERROR = ConnectionError("the bank does not answer")
FAILURE = Failure(attempt=1, at_ms=AT_MS, error=f"ConnectionError: {ERROR}", delay_ms=1_000, worker="celery@host")
RECORD = DeadRecord(
    reason=Reason.EXHAUSTED, task="shop.charge", task_id="0" * 36, queue="celery", dead_letter_key="celery",
    worker="celery@host", attempts=6, died_at_ms=AT_MS, error_type="ConnectionError", error=str(ERROR),
    traceback='  File "shop.py", line 12, in charge\n' * 20,
)  # fmt: skip
#: As Celery writes them.
NEW: dict[str, Any] = {
    "lang": "py", "task": "shop.charge", "id": "0" * 36, "shadow": None, "eta": None, "expires": None, "group": None,
    "group_index": None, "retries": 0, "timelimit": [None, None], "root_id": "0" * 36, "parent_id": None,
    "argsrepr": "(17,)", "kwargsrepr": "{}", "origin": "gen1@host", "ignore_result": False,
    "replaced_task_nesting": 0, "stamped_headers": None, "stamps": {},
}  # fmt: skip


def after(failures: int) -> dict[str, Any]:
    """The headers of a task that has failed so often."""
    headers = NEW
    for _ in range(failures):
        headers = with_failure(headers, FAILURE)
    return headers


def steps() -> Mapping[str, Callable[[], object]]:
    """What is counted, by the words for it."""
    tried, many, more = after(1), after(20), after(100)
    return {
        "decide about an error": lambda: decide(POLICY, ERROR, attempt=2, elapsed_ms=0, chance=0.5, now=AT_MS / 1000),
        "find an announced lane": lambda: lane_ms(10_000, exact=ANNOUNCED, ratio=1.2, limit_ms=DAY_MS),
        "find a lane on the grid": lambda: lane_ms(DELAY_MS, exact=ANNOUNCED, ratio=1.2, limit_ms=DAY_MS),
        "write the history, 1st failure": lambda: with_failure(NEW, FAILURE),
        "write the history, 2nd failure": lambda: with_failure(tried, FAILURE),
        "write the history, 21st failure": lambda: with_failure(many, FAILURE),
        "write the history, 101st failure": lambda: with_failure(more, FAILURE),
        "write the record of a dead letter": lambda: with_record(many, RECORD),
        "for comparison: the headers as JSON": lambda: json.dumps(NEW),
    }


def repeat(step: Callable[[], object], count: int) -> None:
    """What callgrind watches."""
    for _ in range(count):
        step()


def instructions(name: str) -> int:
    """Of one call: what some hundred more of them add to a process."""
    few, more = (_counted(name, count) for count in (FEW, MORE))
    return (more - few) // (MORE - FEW)


def _counted(name: str, count: int) -> int:
    done = subprocess.run(  # noqa: S603 - ourselves, under valgrind
        [
            *(shutil.which("valgrind") or "valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null"),
            *(sys.executable, "-m", "benchmarks.instructions", "--repeat", name, "--count", str(count)),
        ],
        cwd=ROOT, env={**os.environ, "PYTHONHASHSEED": "0"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    found = COLLECTED.search(done.stderr)
    if done.returncode or found is None:
        raise SystemExit(f"callgrind counted nothing: {done.stderr.strip()[-500:]}")
    return int(found[1])


def main() -> None:
    """Count all steps, two at a time: to count is not to time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", metavar="STEP", choices=steps(), help="count nothing: do this step, for callgrind")
    parser.add_argument("--count", type=int, default=MORE, help="how often (default: %(default)s)")
    options = parser.parse_args()
    if options.repeat:
        repeat(steps()[options.repeat], options.count)
        return
    if shutil.which("valgrind") is None:
        raise SystemExit("valgrind is not installed, and callgrind is a part of it: apt-get install valgrind")
    with ThreadPoolExecutor(2) as pool:
        counts = dict(zip(steps(), pool.map(instructions, steps()), strict=True))
    print(f"Python {sys.version.split()[0]}, instructions")
    for name, count in counts.items():
        print(f"{name:<36} {count:>9,}")
    bytes_of = {failures: size_of(after(failures)) for failures in (0, 1, 20, 100)}
    print("bytes of headers after " + ", ".join(f"{many} failures: {size:,}" for many, size in bytes_of.items()))


if __name__ == "__main__":
    main()
