"""What a service sees of its clients' retries while it is down and after: by a policy alone, with budget, with breaker.

python benchmarks/outage.py                          # a minute and a half; prints a table
python benchmarks/outage.py --svg docs/outage.svg    # and draws it
"""

from __future__ import annotations

import argparse
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from amqp.exceptions import NotFound
from celery import Celery
from kombu.connection import Connection

from celery_dlx_retry import Breaker, Budget, DLXRetryTask, Fixed
from tests.provision import provide

if TYPE_CHECKING:
    from collections.abc import Iterator

PER_SECOND = 5  # new tasks, for each way
SECONDS = 60  # in which they are sent
OUTAGE = range(10, 30)
LONGEST_TAIL_SECONDS = 45
THREADS = 16

POLICY = Fixed(2, retries=None)
WAYS: dict[str, dict[str, Any]] = {
    "the policy alone": {},
    "budget, beyond it dead": {"budget": Budget(0.2, reserve=5)},
    "budget, beyond it later": {"budget": Budget(0.2, reserve=5, over=25)},
    "breaker": {"breaker": Breaker(5, probe_every=2)},
}

app = Celery("outage", broker=os.environ.get("OUTAGE_BROKER"), set_as_current=False)
app.conf.update(
    dlx_prefix="outage", task_ignore_result=True, worker_hijack_root_logger=False, worker_prefetch_multiplier=4
)


def service(client: str) -> None:
    """Down as long as there is a file that says so; each call is a line in its log."""
    folder = Path(os.environ["OUTAGE_FOLDER"])
    is_down = (folder / "down").exists()
    line = f"{time.time()} {int(is_down)} {client}\n"
    with (folder / "calls").open("ab", buffering=0) as log:
        log.write(line.encode())
    if is_down:
        raise ConnectionError("503")


for way, limits in WAYS.items():

    @app.task(base=DLXRetryTask, name=way, policy=POLICY, **limits)
    def call(client: str) -> None:
        """Call the service."""
        service(client)


@dataclass(frozen=True, slots=True, kw_only=True)
class Peeked:
    """Calls of one way per second since the start: answered and not; and what became of its tasks."""

    answered: Counter[int]
    failed: Counter[int]
    dead: int

    def per_second(self, second: int) -> int:
        """All calls of this second."""
        return self.answered[second] + self.failed[second]

    def peak(self, seconds: range) -> int:
        """The most in one of these seconds."""
        return max(map(self.per_second, seconds))


def main() -> None:
    """Run all ways at the same time, so that they have the same machine."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--svg", type=Path, help="draw it into this file")
    options = arguments.parse_args()
    with provide() as broker, tempfile.TemporaryDirectory() as folder:
        app.conf.broker_url = broker.url
        found, last = measure(broker.url, Path(folder))
        print(f"{platform.machine()}, {os.cpu_count()} cores, {versions(broker.url)}")
    print_table(found)
    if options.svg:
        options.svg.write_text(drawn(found, last), encoding="utf-8")


def measure(url: str, folder: Path) -> tuple[dict[str, Peeked], int]:
    """Returns what was seen, and the second of the last call."""
    down, calls = folder / "down", folder / "calls"
    calls.touch()
    with workers(url, folder), app.connection_for_write() as connection, app.amqp.Producer(connection) as producer:
        start = time.time()
        for second in range(SECONDS):
            wait_until(start + second)
            if second == OUTAGE.start:
                down.touch()
            if second == OUTAGE.stop:
                down.unlink()
            for number in range(PER_SECOND):
                wait_until(start + second + number / PER_SECOND)
                for way in WAYS:
                    app.send_task(way, (way,), queue=queue_of(way), producer=producer)
            if sys.stderr.isatty():
                print(f"\r{second + 1} of {SECONDS} s", end="", file=sys.stderr)
        wait_until_ended(url, calls)
    return seen(calls, start, url)


@contextmanager
def workers(url: str, folder: Path) -> Iterator[None]:
    """One for each way: one process, so one account and one circuit."""
    environment = {
        **os.environ,
        "OUTAGE_BROKER": url,
        "OUTAGE_FOLDER": str(folder),
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]),
        "C_FORCE_ROOT": "1",
    }
    started = []
    try:
        for number, way in enumerate(WAYS):
            command = [sys.executable, "-m", "celery", "-A", "outage", "worker", "-P", "threads", "-c", f"{THREADS}",
                       "-Q", queue_of(way), "-n", f"w{number}@outage", "--without-mingle", "--without-gossip",
                       "-l", "WARNING"]  # fmt: skip
            with (folder / f"worker-{number}.log").open("wb") as log:
                started.append(
                    subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)  # noqa: S603
                )
        with Connection(url) as connection:
            for way in WAYS:
                deadline = time.monotonic() + 60
                while depth(connection, f"{queue_of(way)}.dead") is None:
                    if time.monotonic() > deadline:
                        raise SystemExit(f"no worker: {(folder / 'worker-0.log').read_text()}")
                    wait_until(time.time() + 0.2)
        wait_until(time.time() + 2)
        yield
    finally:
        for worker in started:
            os.killpg(worker.pid, signal.SIGKILL)
            worker.wait()


def wait_until_ended(url: str, calls: Path) -> None:
    """Until each task was answered or is dead, or it takes too long."""
    deadline = time.monotonic() + LONGEST_TAIL_SECONDS
    sent = PER_SECOND * SECONDS
    while time.monotonic() < deadline:
        answered = Counter(client for _, is_down, client in rows(calls) if not is_down)
        if all(answered[way] + dead(url, way) >= sent for way in WAYS):
            return
        wait_until(time.time() + 0.5)


def seen(calls: Path, start: float, url: str) -> tuple[dict[str, Peeked], int]:
    by_way: dict[str, Peeked] = {}
    last = 0
    for way in WAYS:
        mine = [(int(at - start), is_down) for at, is_down, client in rows(calls) if client == way]
        by_way[way] = Peeked(
            answered=Counter(second for second, is_down in mine if not is_down),
            failed=Counter(second for second, is_down in mine if is_down),
            dead=dead(url, way),
        )
        last = max(last, *(second for second, _ in mine))
    return by_way, last


def rows(calls: Path) -> list[tuple[float, bool, str]]:
    lines = (line.split(" ", 2) for line in calls.read_text().splitlines())
    return [(float(at), is_down == "1", client) for at, is_down, client in lines]


def print_table(found: dict[str, Peeked]) -> None:
    after = range(OUTAGE.stop, SECONDS)
    print(f"\nnew tasks: {PER_SECOND} per second for {SECONDS} s; down from {OUTAGE.start} to {OUTAGE.stop} s")
    print("| | calls in the outage | per second at most | after it, at most | done | dead |")
    print("|---|---|---|---|---|---|")
    for way, it in found.items():
        print(
            f"| {way} | {it.failed.total()} | {it.peak(OUTAGE)} | {it.peak(after)} "
            f"| {it.answered.total()} | {it.dead} |"
        )


def drawn(found: dict[str, Peeked], last: int) -> str:
    """Small multiples on one scale; greys and two colours that are visible on white and on black."""
    left, width, height, gap, bar = 44, 660, 84, 34, 660 / (last + 1)
    most = max(it.peak(range(last + 1)) for it in found.values())
    scale = height / most
    total = 20 + len(found) * (height + gap) + 14
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {left + width + 16} {total}">',
        '<g font-family="system-ui, sans-serif" font-size="12" fill="#808080">',
        "<title>Calls per second that a service sees while it is down and after, by kind of limit</title>",
    ]
    for number, (way, it) in enumerate(found.items()):
        top = 20 + number * (height + gap)
        floor = top + height
        parts += [
            bar_of(left + OUTAGE.start * bar, top, len(OUTAGE) * bar, height, '#808080" fill-opacity="0.15'),
            f'<text x="{left}" y="{top - 5}" font-weight="600">{way}</text>',
            f'<text x="{left - 6}" y="{top + 9}" text-anchor="end">{most}/s</text>',
            f'<text x="{left - 6}" y="{floor}" text-anchor="end">0</text>',
        ]
        for second in range(last + 1):
            x, wide = left + second * bar, max(bar - 1, 0.5)
            good, bad = it.answered[second] * scale, it.failed[second] * scale
            if good:
                parts.append(bar_of(x, floor - good, wide, good, "#3b82c4"))
            if bad:
                parts.append(bar_of(x, floor - good - bad, wide, bad, "#d9603b"))
        parts.append(f'<path d="M{left} {floor}.5h{width}" stroke="#808080" stroke-width="1"/>')
    floor = total - 14
    parts += [
        f'<text x="{left + second * bar:.1f}" y="{floor}" text-anchor="middle">{second} s</text>'
        for second in range(0, last + 1, 10)
    ]
    parts += [
        f'<text x="{left + width - 150}" y="15" text-anchor="end" fill="#3b82c4">answered</text>',
        f'<text x="{left + width - 110}" y="15" text-anchor="end" fill="#d9603b">failed</text>',
        f'<text x="{left + width}" y="15" text-anchor="end">grey: it is down</text>',
        "</g></svg>",
    ]
    return "\n".join(parts) + "\n"


def bar_of(x: float, y: float, width: float, height: float, colour: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{colour}"/>'


def queue_of(way: str) -> str:
    return f"outage.{list(WAYS).index(way)}"


def dead(url: str, way: str) -> int:
    with Connection(url) as connection:
        return depth(connection, f"{queue_of(way)}.dead") or 0


def depth(connection: Connection, queue: str) -> int | None:
    try:
        return int(connection.channel().queue_declare(queue, passive=True).message_count)
    except NotFound:
        return None


def wait_until(moment: float) -> None:
    time.sleep(max(0.0, moment - time.time()))  # noqa: TID251 - the script's own pace


def versions(url: str) -> str:
    with Connection(url) as connection:
        connection.connect()
        rabbitmq = connection.connection.server_properties["version"]
    parts = (f"{name} {version(name)}" for name in ("celery", "kombu", "celery-dlx-retry"))
    return f"RabbitMQ {rabbitmq}, {', '.join(parts)}, Python {platform.python_version()}"


if __name__ == "__main__":
    main()
