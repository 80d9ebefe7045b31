"""How exactly messages wait, and what it costs the broker; on a private RabbitMQ, which is removed afterwards.

python benchmarks/waiting.py accuracy               # lane, grid and ladder with 1, 1,000 and 50,000 waiting
python benchmarks/waiting.py countdown              # 10,000 countdowns and one worker
python benchmarks/waiting.py countdown --celery     # the same in Celery's own way, to compare
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import closing, contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from amqp import Message
from celery import Celery
from kombu.connection import Connection

from celery_dlx_retry import DLXRetryTask
from celery_dlx_retry.broker.declare import declare
from celery_dlx_retry.settings import Settings
from celery_dlx_retry.topology.ladder import Ladder
from celery_dlx_retry.topology.names import Names, WorkQueue
from celery_dlx_retry.topology.objects import shared_objects, work_queue_objects
from celery_dlx_retry.topology.specs import Topology
from celery_dlx_retry.topology.wait_route import WaitKind, WaitRoute, choose, route
from tests.provision import provide

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from celery_dlx_retry.testing import RabbitMQ

SETTINGS = Settings()
LADDER = Ladder.of(SETTINGS)
CROWDS = (1, 1_000, 50_000)
ANNOUNCED_MS = (100, 1_000, 5_000, 20_000)
PROBES = {
    "100 ms, lane": (100, WaitKind.RETRY),
    "1 s, lane": (1_000, WaitKind.RETRY),
    "5 s, lane": (5_000, WaitKind.RETRY),
    "37 s, grid": (37_000, WaitKind.RETRY),
    "61.3 s, ladder": (61_300, WaitKind.COUNTDOWN),
}
PROBE_COUNT = 40
WINDOW = 2_000  # publishes without a confirm yet
LONGEST_RUN_SECONDS = 300.0
DUE = "bench-due"  # in microseconds
LABEL = "bench-label"


class Late(NamedTuple):
    """One arrival: what it was, and by how many ms it was late."""

    label: str
    ms: float


def way_of(names: Names, queue: WorkQueue, delay_ms: int, wish: WaitKind) -> WaitRoute:
    choice = choose(
        delay_ms,
        wish=wish,
        announced=frozenset(ANNOUNCED_MS),
        grid=SETTINGS.grid,
        limit_ms=SETTINGS.max_delay_ms,
        ladder=LADDER,
    )
    return route(choice, names, queue, ladder=LADDER)


class Collector(threading.Thread):
    """Consumes the work queue and notes how late each message is."""

    def __init__(self, url: str, queue: str) -> None:
        super().__init__(daemon=True)
        self._url, self._queue = url, queue
        self.arrivals: list[Late] = []
        self.is_over = False

    def run(self) -> None:
        with Connection(self._url) as connection, connection.channel() as channel:
            channel.basic_qos(0, 1_000, False)  # noqa: FBT003 - py-amqp's signature
            channel.basic_consume(self._queue, no_ack=True, callback=self._note)
            while not self.is_over:
                try:
                    connection.drain_events(timeout=0.5)
                except TimeoutError:  # noqa: PERF203
                    continue

    def _note(self, message: Any) -> None:
        headers = message.headers
        self.arrivals.append(Late(headers[LABEL], (time.monotonic_ns() // 1000 - headers[DUE]) / 1000))


class Sender:
    """Publishes, and keeps at most a window of messages unconfirmed."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._channel = connection.channel()
        self._channel.confirm_select()
        self._channel.events["basic_ack"].add(self._on_ack)
        self._sent = 0
        self._unconfirmed: set[int] = set()

    def send(self, delay_ms: int, there: WaitRoute, label: str) -> None:
        headers = {**there.headers, DUE: time.monotonic_ns() // 1000 + 1000 * delay_ms, LABEL: label}
        self._channel.basic_publish(
            Message("", application_headers=headers, delivery_mode=2),
            exchange=there.exchange,
            routing_key=there.routing_key,
            mandatory=True,
        )
        self._sent += 1
        self._unconfirmed.add(self._sent)
        self.wait(WINDOW)

    def wait(self, unconfirmed: int = 0) -> None:
        while len(self._unconfirmed) > unconfirmed:
            self._connection.drain_events(timeout=30)

    def _on_ack(self, tag: int, multiple: bool) -> None:  # noqa: FBT001 - py-amqp's signature
        done = {one for one in self._unconfirmed if one <= tag} if multiple else {tag}
        self._unconfirmed -= done


def accuracy(kind: Any, crowds: Iterable[int]) -> None:
    with broker(f"accuracy, {kind} queues") as rabbitmq:
        print(
            "| waiting | way of those | early | late p50 | p99 | worst | broker CPU | probes beside them, p50 / p99 |"
        )
        print("|---|---|---|---|---|---|---|---|")
        for crowd in crowds:
            for name, delays, wish in (
                ("one lane, 20 s", lambda: 20_000, WaitKind.RETRY),
                ("grid, 5 to 60 s", lambda: random.randint(5_000, 60_000), WaitKind.RETRY),  # noqa: S311
                ("ladder, 5 to 60 s", lambda: random.randint(5_000, 60_000), WaitKind.COUNTDOWN),  # noqa: S311
            ):
                row(rabbitmq, kind, crowd, name, [delays() for _ in range(crowd)], wish)


def row(rabbitmq: RabbitMQ, kind: Any, crowd: int, name: str, delays_ms: list[int], wish: WaitKind) -> None:  # noqa: PLR0913, PLR0917
    names, queue = Names(prefix="bench", kind=kind), WorkQueue(name="bench.work")
    ways = {delay_ms: way_of(names, queue, delay_ms, wish) for delay_ms in set(delays_ms)}
    probes = {label: way_of(names, queue, *probe) for label, probe in PROBES.items()}
    prepare(rabbitmq, names, queue, [*ways.values(), *probes.values()])
    collector = Collector(rabbitmq.url, queue.name)
    collector.start()
    before = cpu_seconds(rabbitmq)
    with Connection(rabbitmq.url) as connection:
        sender = Sender(connection)
        for delay_ms in delays_ms:
            sender.send(delay_ms, ways[delay_ms], "crowd")
        for number in range(PROBE_COUNT * len(PROBES)):
            label = list(PROBES)[number % len(PROBES)]
            sender.send(PROBES[label][0], probes[label], label)
            time.sleep(0.02)  # noqa: TID251 - a steady trickle
        sender.wait()
    expected = crowd + PROBE_COUNT * len(PROBES)
    deadline = time.monotonic() + LONGEST_RUN_SECONDS
    while len(collector.arrivals) < expected and time.monotonic() < deadline:
        time.sleep(0.5)  # noqa: TID251 - they wait, and so do we
    spent = cpu_seconds(rabbitmq) - before
    collector.is_over = True
    collector.join()
    report(crowd, name, collector.arrivals, expected, spent)


def prepare(rabbitmq: RabbitMQ, names: Names, queue: WorkQueue, ways: list[WaitRoute]) -> None:
    topology = shared_objects(names) | work_queue_objects(names, queue)
    all_ways = Topology.union(part for there in ways for part in (there.needs, there.lane) if part is not None)
    with Connection(rabbitmq.url) as connection:
        connection.default_channel.queue_declare(
            queue.name, durable=True, auto_delete=False, arguments={"x-queue-type": names.kind}
        )
        declare(connection, topology | all_ways)


def report(crowd: int, name: str, arrivals: list[Late], expected: int, cpu: float) -> None:
    early = sum(arrival.ms < 0 for arrival in arrivals)
    lost = "" if len(arrivals) == expected else f" **{expected - len(arrivals)} not back yet**"
    of_crowd = sorted(arrival.ms for arrival in arrivals if arrival.label == "crowd")
    beside = []
    for label in PROBES:
        ms = sorted(arrival.ms for arrival in arrivals if arrival.label == label)
        beside.append(f"{label}: {at(ms, 0.5)} / {at(ms, 0.99)}")
    numbers = " | ".join(at(of_crowd, share) for share in (0.5, 0.99, 1))
    print(f"| {crowd:,} | {name} | {early}{lost} | {numbers} | {cpu:.1f} s | {'; '.join(beside)} |", flush=True)


def at(values: list[float], share: float) -> str:
    return f"{values[min(len(values) - 1, int(len(values) * share))]:,.0f} ms" if values else "-"


def countdown(count: int, *, is_celery: bool) -> None:
    """Many countdowns, one worker: it must not grow with them, and no queue may be made for each."""
    title = f"{count:,} countdowns, {'Celery alone' if is_celery else 'in the broker'}"
    with broker(title) as rabbitmq, tempfile.TemporaryDirectory() as folder:
        ran = Path(folder) / "ran"
        ran.touch()
        os.environ |= {"BENCH_URL": rabbitmq.url, "BENCH_RAN": str(ran), "BENCH_DLX": str(int(not is_celery))}
        app = make_app()
        with worker() as process:
            while "ready" not in ran.read_text():
                app.tasks["bench.note"].apply_async(args=("ready",))
                time.sleep(1)  # noqa: TID251 - a worker takes its time to start
            measure(app, process, ran, count, rabbitmq)


def measure(app: Celery, process: subprocess.Popen[bytes], ran: Path, count: int, rabbitmq: RabbitMQ) -> None:
    memory = [("before", resident_mb(process.pid))]
    queues = len(queue_names(rabbitmq))
    start = time.monotonic()
    for _ in range(count):
        app.tasks["bench.note"].apply_async(args=("run",), countdown=random.uniform(60, 180))  # noqa: S311
    sending = time.monotonic() - start
    deadline = time.monotonic() + LONGEST_RUN_SECONDS
    memory.append(("all sent", resident_mb(process.pid)))
    while (done := ran.read_text().count("run")) < count and time.monotonic() < deadline:
        time.sleep(2)  # noqa: TID251 - they wait, and so do we
    memory.append(("all run", resident_mb(process.pid)))
    late = sorted(float(line.split()[1]) for line in ran.read_text().splitlines() if line.startswith("run"))
    print(f"sent in {sending:.0f} s, {1000 * sending / count:.1f} ms each")
    print(f"run {done:,} of {count:,}, early {sum(ms < 0 for ms in late)}")
    print(f"late p50 {at(late, 0.5)}, p99 {at(late, 0.99)}, worst {at(late, 1)}")
    print(f"queues on the broker: {queues} before, {len(queue_names(rabbitmq))} after")
    print("worker's memory: " + ", ".join(f"{when} {mb:.0f} MB" for when, mb in memory))


def make_app() -> Celery:
    """The app of sender and worker; both are this file."""
    app = Celery("bench", broker=os.environ["BENCH_URL"], set_as_current=False)
    app.conf.update(dlx_prefix="bench", dlx_countdown=os.environ["BENCH_DLX"] == "1", task_ignore_result=True)

    @app.task(bind=True, base=DLXRetryTask, name="bench.note", shared=False)
    def note(self: Any, what: str) -> None:
        from datetime import datetime  # noqa: PLC0415 - in the worker only

        due = datetime.fromisoformat(self.request.eta).timestamp() if self.request.eta else time.time()
        descriptor = os.open(os.environ["BENCH_RAN"], os.O_WRONLY | os.O_APPEND)
        with closing(os.fdopen(descriptor, "a")) as out:
            out.write(f"{what} {1000 * (time.time() - due):.3f}\n")

    return app


@contextmanager
def worker() -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "celery", "-A", "waiting:app", "worker", "-c", "2", "-l", "WARNING"]
    folder = str(Path(__file__).parent)
    process = subprocess.Popen(  # noqa: S603 - our own file
        command, cwd=folder, env={**os.environ, "C_FORCE_ROOT": "1"}, start_new_session=True
    )
    try:
        yield process
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(30)


@contextmanager
def broker(title: str) -> Iterator[RabbitMQ]:
    with provide() as rabbitmq:
        versions = f"RabbitMQ {rabbitmq.version}, Celery {version('celery')}, Python {platform.python_version()}"
        print(f"{title}; {versions}; {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the start\n", flush=True)
        yield rabbitmq


def cpu_seconds(rabbitmq: RabbitMQ) -> float:
    """What the broker's process has used so far."""
    pid = rabbitmq.ctl("eval", "os:getpid().").strip().strip('"')
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def queue_names(rabbitmq: RabbitMQ) -> list[str]:
    return [line for line in rabbitmq.ctl("list_queues", "name", "--no-table-headers").splitlines() if line.strip()]


def resident_mb(pid: int) -> float:
    """The worker's main process: what waits in a worker waits there."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=["accuracy", "countdown"])
    parser.add_argument("--queue-type", choices=["classic", "quorum"], default="classic")
    parser.add_argument("--waiting", type=int, nargs="+", default=CROWDS)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--celery", action="store_true", help="Celery's own countdowns")
    options = parser.parse_args()
    if options.mode == "accuracy":
        accuracy(options.queue_type, options.waiting)
    else:
        countdown(options.count, is_celery=options.celery)


if __name__ == "__main__":
    main()
elif "BENCH_URL" in os.environ:
    app = make_app()
