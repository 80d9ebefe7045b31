"""What a retry costs with everything on that watches it: CPU of the worker, in rounds that alternate with none of it.

    python -m benchmarks.observability [--rounds 5] [--tasks 300] [--tools metrics]    # three minutes; a RabbitMQ

"All" is the metrics for Prometheus, and OpenTelemetry and Sentry if this environment has their packages.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from statistics import median

from celery import Celery

from benchmarks.compare.machine import cpu_seconds
from celery_dlx_retry.testing.sandbox import wait_until
from tests.provision import provide
from tests.workers import celery, start_worker

ROOT = Path(__file__).parents[1]
QUEUE, RETRIES = "observed", 5  # as in benchmarks/observed.py
#: The package of each tool, and our adapter.
TOOLS = {
    "metrics": ("prometheus_client", "celery_dlx_retry.contrib.prometheus"),
    "otel": ("opentelemetry.sdk", "celery_dlx_retry.contrib.opentelemetry"),
    "sentry": ("sentry_sdk", "celery_dlx_retry.contrib.sentry"),
}
WARM_UP_TASKS = 30
WITHIN_SECONDS = 300.0


def available() -> list[str]:
    """Return the tools that this environment and this package have."""
    return [name for name, modules in TOOLS.items() if all(map(_exists, modules))]


def _exists(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # of the package that it is in
        return False


def milliseconds_per_retry(tools: list[str], *, url: str, tasks: int) -> float:
    """Return the CPU of a new worker, main process and pool process, which has warmed up before."""
    with tempfile.TemporaryDirectory() as folder, Celery("sender", broker=url, set_as_current=False) as sender:
        ends = Path(folder) / "ends"
        ends.touch()
        environment = {
            **os.environ,
            "OBSERVED": " ".join(tools),
            "OBSERVED_BROKER": url,
            "OBSERVED_ENDS": str(ends),
            "PYTHONPATH": str(ROOT),
        }
        flags = ("-l", "ERROR", "-c", "1", "--without-mingle", "--without-gossip", "--without-heartbeat")
        command = celery("benchmarks.observed", "worker", *flags)
        worker = start_worker(command, log=Path(folder) / "log", environment=environment)
        sender.conf.update(task_default_queue=QUEUE, task_ignore_result=True)
        try:
            for count, wanted in ((WARM_UP_TASKS, WARM_UP_TASKS), (tasks, WARM_UP_TASKS + tasks)):
                before = cpu_seconds(worker.process.pid)
                for _ in range(count):
                    sender.send_task("observed.heals")
                if not wait_until(lambda wanted=wanted: ends.stat().st_size == wanted, within=WITHIN_SECONDS):
                    raise TimeoutError(worker.log)
                used = cpu_seconds(worker.process.pid) - before
            return used * 1000 / (tasks * RETRIES)
        finally:
            worker.stop()


def main() -> None:
    """Measure in turn, and print the ratio of the medians."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tasks", type=int, default=300)
    parser.add_argument("--tools", nargs="*", choices=list(TOOLS), default=available())
    wanted = parser.parse_args()
    with provide() as broker:
        contenders: dict[str, list[float]] = {"none": [], " + ".join(wanted.tools): []}
        for number in range(wanted.rounds):
            for name, found in list(contenders.items())[:: 1 if number % 2 else -1]:
                tools = [] if name == "none" else wanted.tools
                found.append(milliseconds_per_retry(tools, url=broker.url, tasks=wanted.tasks))
                print(f"{time.strftime('%H:%M:%S')} {name}: {found[-1]:.3f} ms of CPU per retry", flush=True)
    (_, none), (tools_on, all_on) = contenders.items()
    print(f"{tools_on} over none: {median(all_on) / median(none):.2f} (medians), {min(all_on) / min(none):.2f} (best)")


if __name__ == "__main__":
    main()
