"""How long the dead-letter commands take on long queues, and in how much memory.

    python -m benchmarks.deadletters [--letters 100000] [--kind classic|quorum] [--part read|replay]

It starts a private RabbitMQ, puts 100,000 dead letters of 2 kB into a classic and a quorum dead-letter queue, and runs
the real command line on them. Memory of the command is its largest resident set; that of the broker is what its HTTP
API says at the end of each command, while it still holds what was read.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import threading
import time
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from amqp import Message
from celery import Celery
from kombu.connection import Connection

from celery_dlx_retry.broker.declare import declare
from celery_dlx_retry.policy.reasons import Reason
from celery_dlx_retry.topology.names import Names, WorkQueue
from celery_dlx_retry.topology.objects import shared_objects, work_queue_objects
from celery_dlx_retry.wire.dead_record import DeadRecord, with_record
from celery_dlx_retry.wire.headers import Failure, with_failure
from tests.management import Management
from tests.provision import provide

if TYPE_CHECKING:
    from celery_dlx_retry.testing import RabbitMQ

KINDS = ("classic", "quorum")
REPLAYED = 10_000
RATE = 50
PREFIX = "bench"

app = Celery("bench", broker=os.environ.get("BENCH_URL", "amqp://"), set_as_current=False)
app.conf.dlx_prefix = PREFIX


def main() -> None:
    """Measure, and print a table for docs/dead-letters.md."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--letters", type=int, default=100_000)
    parser.add_argument("--kind", choices=KINDS, action="append")
    parser.add_argument("--part", choices=("read", "replay"))
    wanted = parser.parse_args()
    with provide() as broker, Connection(broker.url) as connection:
        connection.connect()
        rabbit = connection.connection.server_properties["version"]
        print(f"Python {platform.python_version()}, Celery {version('celery')}, py-amqp {version('amqp')}, "
              f"RabbitMQ {rabbit}, {os.cpu_count()} cores")  # fmt: skip
        print("\n| queue | command | letters | seconds | CPU | command, MB | broker, MB before, most |")
        print("|---|---|---|---|---|---|---|", flush=True)
        os.environ["BENCH_URL"] = broker.url
        node = Node(broker)
        for kind in wanted.kind or KINDS:
            queue = f"{PREFIX}.{kind}"
            if wanted.part != "replay":
                fill(connection, kind, f"{queue}.long", wanted.letters)
                measure(node, kind, wanted.letters, "list", "-q", f"{queue}.long", "--limit", "20")
                measure(node, kind, wanted.letters, "groups", "-q", f"{queue}.long")
            if wanted.part != "read":
                fill(connection, kind, f"{queue}.short", 2 * REPLAYED)
                measure(node, kind, REPLAYED, "replay", "-q", f"{queue}.short", "--task", "shop.task_0*", "--yes")
                rated = ("--all", "--yes", "--rate", f"{RATE}/s")
                measure(node, kind, REPLAYED, "replay", "-q", f"{queue}.short", *rated)


def fill(connection: Connection, queue_type: Any, queue: str, count: int) -> None:
    """Lay dead letters of 20 kinds into the dead-letter queue of a work queue."""
    names, work = Names(prefix=PREFIX, kind=queue_type), WorkQueue(name=queue)
    with connection.channel() as channel:
        arguments = {"x-queue-type": queue_type}
        channel.queue_declare(work.name, durable=True, auto_delete=False, arguments=arguments)
        declare(connection, shared_objects(names) | work_queue_objects(names, work))
        channel.confirm_select()
        for number in range(count):
            # The first half of a short queue is of tasks 00 to 09, as the filter of the first replay has it.
            kind = number * 20 // count
            message = Message(
                json.dumps([[number], {}, {}]),
                content_type="application/json",
                content_encoding="utf-8",
                delivery_mode=2,
                application_headers=headers(number, kind, work.name),
            )
            channel.basic_publish(message, exchange="", routing_key=names.dead_letters(work.name))
        while channel.queue_declare(names.dead_letters(work.name), passive=True).message_count < count:
            time.sleep(0.2)  # noqa: TID251 - until all are there


def headers(number: int, kind: int, queue: str) -> dict[str, Any]:
    """Those of a dead letter that died in one of 20 functions."""
    traceback = "Traceback (most recent call last):\n" + "".join(
        f'  File "/srv/shop/tasks.py", line {line}, in step_{kind}\n    call_the_next(order, customer, {line})\n'
        for line in range(12)
    )
    record = DeadRecord(
        reason=Reason.EXHAUSTED,
        task=f"shop.task_{kind:02d}",
        task_id=f"{number:08d}-0000-4000-8000-000000000000",
        queue=queue,
        dead_letter_key=queue,
        worker="worker@host",
        attempts=4,
        died_at_ms=1_790_000_000_000 + number,
        error_type="ConnectionError",
        error=f"order {number}",
        traceback=traceback,
    )
    failure = Failure(attempt=4, at_ms=record.died_at_ms, error="ConnectionError", delay_ms=None, worker="worker@host")
    return with_record(with_failure({"id": record.task_id, "task": record.task, "retries": 3}, failure), record)


def measure(node: Node, kind: str, letters: int, *command: str) -> None:
    """Run one command and print its row."""
    before = node.megabytes()
    watch, started = Watch(node), time.monotonic()
    process = subprocess.Popen(  # noqa: S603 - ourselves
        [sys.executable, "-m", "celery", "-A", "benchmarks.deadletters", "dlx", "dead", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    moved = [time.monotonic() for line in process.stdout or () if line.startswith(b"replayed")]
    _, status, usage = os.wait4(process.pid, 0)
    seconds, most = time.monotonic() - started, watch.stop()
    process.returncode = os.waitstatus_to_exitcode(status)
    pace = f", {(len(moved) - 1) / (moved[-1] - moved[0]):.1f}/s" if moved else ""
    shown = " ".join(word for word in command if not word.startswith(PREFIX) and word != "-q")
    cpu, own = usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024
    row = (kind, f"`{shown}`", f"{letters:,}{pace}", f"{seconds:.1f}", f"{cpu:.1f}", f"{own:.0f}", f"{before}, {most}")
    print("| " + " | ".join(row) + " |", flush=True)
    if process.returncode or (moved and len(moved) != letters):
        raise SystemExit(f"exit code {process.returncode}, {len(moved)} moved")


class Node:
    """How much memory the broker uses."""

    def __init__(self, broker: RabbitMQ) -> None:
        self._api = Management(broker)

    def megabytes(self) -> int:
        """What the broker says that it uses."""
        return round(self._api.call("GET", "/nodes")[0]["mem_used"] / 2**20)


class Watch:
    """The most that the broker used while something ran."""

    def __init__(self, node: Node) -> None:
        self._node, self.most = node, 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def stop(self) -> int:
        """End it; the most so far."""
        self._over.set()
        self._thread.join()
        return self.most

    def _look(self) -> None:
        while not self._over.wait(1):
            self.most = max(self.most, self._node.megabytes())


if __name__ == "__main__":
    main()
