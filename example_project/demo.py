"""Forty tasks, a worker killed with ``kill -9``, and the count afterwards: ``make demo``.

It starts a private RabbitMQ, and removes it. With ``DLX_TEST_BROKER_URL`` it uses that RabbitMQ, under separate names,
and deletes them. Exit code 0: as promised. 1: not. 2: no broker.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import closing, contextmanager
from pathlib import Path

from amqp.exceptions import NotFound
from kombu.connection import Connection
from rich.console import Console

from celery_dlx_retry.app.context import context_of
from celery_dlx_retry.broker.dead_letters import browse
from celery_dlx_retry.errors import NoBroker
from celery_dlx_retry.testing.sandbox import Sandbox
from celery_dlx_retry.topology.lanes import lane_ms
from celery_dlx_retry.topology.names import Names, WorkQueue
from celery_dlx_retry.topology.objects import lane, shared_objects, work_queue_objects
from example_project import shop
from example_project.board import Board, Sight, dead_letter_table
from tests.provision import provide

HEALTHY = ((shop.thumbnail, 4), (shop.charge, 12), (shop.send_mail, 10), (shop.webhook, 7))
POISONED = ((shop.ship, 3), (shop.invoice, 2), (shop.refund, 1))
LAST = ((shop.report, 1),)  # when it runs, all others have been tried

PATIENCE_SECONDS = 60
OUTAGE_SECONDS = 4
TICK_SECONDS = 0.2


class BrokenPromise(Exception):
    """What happened instead."""


def main() -> int:
    # After SIGTERM clean up as after Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    console = Console(highlight=False)
    try:
        console.print("Looking for a RabbitMQ ...")
        with provide(say=lambda line: console.print(f"  {line}", soft_wrap=True, markup=False)) as broker:
            console.print(f"RabbitMQ {broker.version} at {broker.shown_url} ({broker.origin})", soft_wrap=True)
            with closing(Demo(broker.url, console, is_guest=not broker.can_restart)) as demo:
                return demo.tell()
    except NoBroker as exc:
        print(exc, file=sys.stderr)
        return 2
    except BrokenPromise as exc:
        print(f"Not as promised: {exc}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


@contextmanager
def interrupts_held_back():
    """Let Ctrl-C wait a moment; a second one does not wait.

    At the wrong moment it would leave a process that the demo does not know yet, or a connection in the middle of an
    answer, which waits for ever for the next one.
    """
    came = []

    def hold(number, frame):
        if came:
            signal.default_int_handler(number, frame)
        came.append(number)

    handlers = {number: signal.signal(number, hold) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    if came:
        raise KeyboardInterrupt


class Demo:
    """One run: a worker in a separate process group, and what the demo sees of it from outside."""

    def __init__(self, url, console, *, is_guest):
        self._is_guest = is_guest
        self.name = f"shop-{secrets.token_hex(3)}"
        self._names = Names(prefix=self.name)
        self._work_queue = WorkQueue(name=self.name)
        self._dead_queue = self._names.dead_letters(self.name)
        self._console = console
        self._board = Board(console)
        self._sent = set()
        self._worker = "not started"
        # The tasks that we send are the shop's own; only where they go is ours.
        shop.app.conf.update(broker_url=url, task_default_queue=self.name, dlx_prefix=self.name)
        self._url, self._connection = url, Connection(url)
        # A folder and processes that go when we go, even if we are killed.
        self._sandbox = Sandbox(self.name)
        self._records = self._sandbox.path / shop.RECORDS.name
        self._records.touch()
        self._environment = {
            **os.environ,
            "SHOP_BROKER_URL": url,
            "SHOP_FOLDER": str(self._sandbox.path),
            "SHOP_NAME": self.name,
            "PYTHONPATH": str(Path(__file__).parents[1]),
            "PYTHONWARNINGS": "ignore",
            "C_FORCE_ROOT": "1",  # containers run as root, and Celery minds
        }

    def close(self):
        self._sandbox.close()
        self._connection.collect()
        if self._is_guest:
            self.delete_names()

    def tell(self) -> int:
        """Run the demo, and return the exit code."""
        self._chapter("1. A worker starts, and tasks are sent")
        self._say(f"Work queue: {self.name}; dead-letter queue: {self._dead_queue}")
        self.start_worker()
        self.send(HEALTHY + POISONED + LAST)

        self._chapter("2. The bank and the mail server are down: tasks fail and wait in lanes, in the broker")
        self.watch(until=lambda: self._is_running(shop.report))
        self._say("Five seconds, which no task announced, are rounded up to the next lane; the others have their own.")

        self._chapter("3. kill -9 of the worker and its pool, while they wait")
        self.kill_worker()
        end = time.monotonic() + OUTAGE_SECONDS
        self.watch(until=lambda: time.monotonic() > end)
        self._say("No worker runs, and the waits go on: what has waited long enough is back in the work queue.")

        self._chapter("4. The worker is started again")
        self.start_worker()
        self.watch(until=self._is_settled)

        self._chapter("5. What no retry can heal are now dead letters, with reason and history")
        self.list_dead_letters()

        self._chapter("6. The bugs are fixed, and the dead letters are replayed")
        (self._sandbox.path / shop.FIXED.name).touch()
        self.celery("dlx", "dead", "replay", "--all", "--yes")
        self.watch(until=self._is_settled)

        self._chapter("7. The count, by task id, of what the tasks wrote down themselves")
        return self.count()

    def start_worker(self):
        command = (
            *(sys.executable, "-m", "celery", "-A", "example_project.shop", "worker", "--loglevel", "INFO"),
            *("--concurrency", "2", "--hostname", f"worker@{self.name}", "--without-gossip", "--without-mingle"),
        )
        with interrupts_held_back():
            self._sandbox.spawn("worker", command, self._environment)
        self._worker = f"runs, pid {self._sandbox.pid('worker')}"
        self._say(f"celery -A example_project.shop worker: pid {self._sandbox.pid('worker')}")

    def kill_worker(self):
        pid = self._sandbox.pid("worker")
        self._sandbox.kill("worker")  # SIGKILL to the process group
        self._worker = "killed"
        waiting = sum(depth for _, depth in self._sight().lanes)
        self._say(f"kill -9 -{pid}: the worker is gone, {waiting} tasks wait in lanes.")
        if not waiting:
            raise BrokenPromise("no task was waiting when the worker was killed; is this machine very slow?")

    def stop_worker(self):
        self._sandbox.terminate("worker", within=10)
        self._worker = "stopped"

    def send(self, batch):
        for task, count in batch:
            for number in range(1, count + 1):
                self._sent.add(task.delay(f"order-{number}").id)
        self._say(f"{len(self._sent)} tasks sent.")

    def watch(self, *, until):
        """Show lanes and queues until it is so."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        with self._board.live() as show:
            while True:
                is_so = until()
                show(self._sight())
                if is_so:
                    return
                if self._worker != "killed" and self._sandbox.pid("worker") is None:
                    raise BrokenPromise(f"the worker ended, last saying: {self._sandbox.tail('worker')}")
                if time.monotonic() > deadline:
                    raise BrokenPromise(f"this chapter took more than {PATIENCE_SECONDS} s")
                time.sleep(TICK_SECONDS)  # noqa: TID251 - the pace of the pictures

    def celery(self, *arguments):
        """Run a command as an operator would."""
        self._say(f"$ celery -A example_project.shop {' '.join(arguments)}")
        command = [sys.executable, "-m", "celery", "-A", "example_project.shop", *arguments]
        done = subprocess.run(command, env=self._environment, capture_output=True, text=True, check=False)
        self._say(done.stdout.strip())
        if done.returncode:
            raise BrokenPromise(f"celery {' '.join(arguments)} failed: {done.stderr.strip()}")

    def list_dead_letters(self):
        letters = self._dead_letters()
        self._console.print(dead_letter_table(letters))
        found = Counter({letter.record.task_id: letter.record.task for letter in letters}.values())
        wanted = Counter({task.name: count for task, count in POISONED})
        if found != wanted:
            raise BrokenPromise(f"{dict(wanted)} should be dead letters; {dict(found)} are")

    def count(self) -> int:
        self.stop_worker()
        finished = self._finished()
        runs = Counter(record["event"] for record in self._read_records())
        done, dead = self._sent & finished.keys(), self._dead_ids()
        lost = self._sent - done - dead
        duplicates = finished.total() - len(finished)
        self._say(f"{runs['started']} runs, {runs['done']} of them to their end.")
        self._say(
            f"{len(self._sent)} in = {len(done)} done + {len(dead)} dead, {len(lost)} lost, {duplicates} duplicates"
        )
        return 0 if done == self._sent and not dead else 1

    def delete_names(self):
        """Leave a broker that is not ours as it was."""
        topology = shared_objects(self._names) | work_queue_objects(self._names, self._work_queue)
        for delay_ms in self._delays_ms():
            topology |= lane(self._names, self._work_queue, delay_ms)
        with Connection(self._url) as connection, closing(connection.channel()) as channel:
            for queue in (self.name, *(queue.name for queue in topology.queues)):
                channel.queue_delete(queue)
            for exchange in (self.name, *(exchange.name for exchange in topology.exchanges)):
                channel.exchange_delete(exchange)

    def _delays_ms(self):
        """The lanes that a worker of the shop declares, and the one of its webhook's five seconds."""
        context = context_of(shop.app)
        exact, settings = context.exact_lanes, context.settings
        return sorted(exact | {lane_ms(5000, exact=exact, ratio=settings.grid, limit_ms=settings.max_delay_ms)})

    def _sight(self):
        return Sight(
            lanes=tuple(
                (f"{delay_ms / 1000:g} s", self._depth(self._names.lane(self._work_queue, delay_ms)))
                for delay_ms in self._delays_ms()
            ),
            work=self._depth(self.name),
            dead=self._depth(self._dead_queue),
            done=len(self._finished()),
            sent=len(self._sent),
            worker=self._worker,
        )

    def _depth(self, queue):
        """Messages that are ready in a queue; a passive declare asks and changes nothing."""
        with interrupts_held_back(), closing(self._connection.channel()) as channel:
            try:
                return channel.queue_declare(queue, passive=True).message_count
            except NotFound:
                return 0  # a lane that no task has needed yet

    def _is_settled(self):
        """Nothing waits any more, and every task is done or dead."""
        sight = self._sight()
        if sight.work or any(depth for _, depth in sight.lanes) or sight.done + sight.dead < sight.sent:
            return False
        return self._sent <= self._finished().keys() | self._dead_ids()

    def _is_running(self, task):
        events = [record["event"] for record in self._read_records() if record["task"] == task.name]
        return events[-1:] == ["started"]

    def _finished(self):
        """How often each task came to its end."""
        return Counter(record["id"] for record in self._read_records() if record["event"] == "done")

    def _read_records(self):
        return [json.loads(line) for line in self._records.read_text().splitlines()]

    def _dead_ids(self):
        return {letter.record.task_id for letter in self._dead_letters()}

    def _dead_letters(self):
        with interrupts_held_back():
            return list(browse(self._connection, self._dead_queue))

    def _chapter(self, title):
        self._console.print(f"\n[bold]{title}[/bold]", soft_wrap=True)

    def _say(self, line):
        self._console.print(line, soft_wrap=True, markup=False)


if __name__ == "__main__":
    sys.exit(main())
