"""One chaos run: workers that are killed while they work, a broker that is restarted, and the wait for the end."""

from __future__ import annotations

import json
import random
import secrets
import signal
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from kombu.connection import Connection

from celery_dlx_retry.broker.connection import BROKER_ERRORS
from celery_dlx_retry.broker.dead_letters import browse
from celery_dlx_retry.errors import DLXError, Missing
from celery_dlx_retry.testing.chaos import project as chaos_project
from celery_dlx_retry.testing.chaos.load import Job, Sender, jobs
from celery_dlx_retry.testing.chaos.report import End, Records
from celery_dlx_retry.testing.records import append_line
from celery_dlx_retry.testing.sandbox import Sandbox
from celery_dlx_retry.testing.worker_process import worker_command, worker_environment
from celery_dlx_retry.topology.names import Names

if TYPE_CHECKING:
    from pathlib import Path

    from celery_dlx_retry.settings import QueueType
    from celery_dlx_retry.testing.chaos.breaks import Break, Broken
    from celery_dlx_retry.testing.chaos.command import View


Pool = Literal["prefork", "solo", "threads"]

TICK_SECONDS = 0.1
LONGEST_GAP_SECONDS = 3.0  # between two breaks, at the mean
QUIET_SECONDS = 3.0  # only the lanes after a crash are longer: two minutes
# What a lane gave to a work queue that was going down, RabbitMQ gives again after three minutes.
LONGEST_WAIT_SECONDS = 200.0
IDLE_WORKER_SECONDS = 15.0
STOP_SECONDS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much of everything; ``lanes`` is ``dlx_queue_type``."""

    tasks: int
    workers: int
    concurrency: int
    kills: int
    restarts: int
    queue_type: QueueType
    lanes: QueueType
    seconds: float
    seed: int
    pool: Pool = "prefork"

    @property
    def tasks_at_once(self) -> int:
        """How many tasks a worker runs at once."""
        return 1 if self.pool == "solo" else self.concurrency


class WorkersEnd(DLXError):
    """``said``."""

    sentence = "The workers end by themselves, last saying: {said}."


class Run:
    """``go`` until every task is done or dead, or the time is up; ``dead`` and ``records`` then have the result."""

    def __init__(self, plan: Plan, url: str, break_broker: Break | None, view: View, *, keep: Path | None) -> None:
        self.plan, self.url = plan, url
        self._break_broker, self._view = break_broker, view
        self._chance = random.Random(plan.seed)  # noqa: S311 - chaos is no secret
        self.prefix = f"chaos-{secrets.token_hex(4)}"
        self.names = Names(prefix=self.prefix, kind=plan.lanes)
        self.queue = chaos_project.queue_name(self.prefix)
        self.load: list[Job] = list(jobs(plan.tasks, self._chance, pool=plan.pool))
        self._breaks = self._planned_breaks()
        # Its processes end with this process, even if this one is killed.
        self._sandbox = Sandbox(self.prefix)
        self._folder = keep or self._sandbox.path
        self.records = Records(self._folder / "records.jsonl")
        self._configuration = {"prefix": self.prefix, "url": url, "queue_type": plan.queue_type, "lanes": plan.lanes}
        self.sender = Sender(self.load, chaos_project.configuration(**self._configuration))
        self._threads = ThreadPoolExecutor(1)
        self._restart: Future[Broken] | None = None
        self._next_break_at = 0.0
        self._started_at: dict[str, float] = {}
        self._lives: dict[str, float] = {}
        self.kills = self.restarts = self.ended = self.in_flight = 0
        self.crashes: list[float] = []
        self.seconds = 0.0
        self.is_in_time = False

    def close(self) -> None:
        """End every process, and wait for a broker that is starting."""
        self.sender.stop()
        self._threads.shutdown(cancel_futures=True)
        self._sandbox.close()
        self.records.close()

    def go(self) -> None:
        """Start, break, wait, stop."""
        begin = time.monotonic()
        # Half of the tasks are sent at once, the others between the breaks, so that every break meets work.
        self.sender.allow(self.plan.tasks - (self.plan.tasks // 2 if self._breaks else 0))
        self.sender.start()
        for number in range(1, self.plan.workers + 1):
            self._start_worker(f"worker{number}")
        self.is_in_time = self._until_settled(begin + self.plan.seconds)
        self.sender.stop()
        self._threads.shutdown()  # wait for a restart, because the count needs the broker
        self._stop_workers()
        self.seconds = time.monotonic() - begin

    def dead(self) -> list[End]:
        """Return the tasks in the dead-letter queue and with the orphans."""
        found: list[End] = []
        with Connection(self.url) as connection:
            connection.ensure_connection(max_retries=10)
            for queue in (self.names.dead_letters(self.queue), self.names.orphans()):
                try:
                    letters = [letter.record for letter in browse(connection, queue)]
                    found += [End(it.task_id, it.died_at_ms / 1000, str(it.reason)) for it in letters]
                except Missing:  # noqa: PERF203 - no worker has started
                    continue
        return found

    def _until_settled(self, deadline: float) -> bool:
        self._next_break_at = time.monotonic() + self._gap()
        quiet_since = checked_at = time.monotonic()
        while (now := time.monotonic()) < deadline:
            time.sleep(TICK_SECONDS)  # noqa: TID251 - the pace of looking
            if self.records.read():
                quiet_since = now
            self._look_after_workers()
            self._look_after_threads()
            if self._breaks and now >= self._next_break_at and self._break(self._breaks[-1]):
                self._breaks.pop()
                self.sender.allow(self._released())
                self._next_break_at = now + self._gap()
            self._view.progress(
                f"sent {self.sender.sent} | runs {self.records.runs} | done {len(self.records.done_ids)} | "
                f"kills {self.kills} | restarts {self.restarts}"
            )
            if self._breaks or self._restart is not None or now - max(quiet_since, checked_at) < QUIET_SECONDS:
                continue
            checked_at = now
            if self._is_settled() or now - quiet_since > LONGEST_WAIT_SECONDS:
                return True
        return False

    def _is_settled(self) -> bool:
        try:
            ended = self.records.done_ids | {end.id for end in self.dead()}
        except BROKER_ERRORS:
            return False
        return ended.issuperset(job.id for job in self.load)

    # --- breaking ---

    def _planned_breaks(self) -> list[str]:
        restarts = self.plan.restarts if self._break_broker else 0
        breaks = [*["kill"] * self.plan.kills, *["restart"] * restarts]
        self._chance.shuffle(breaks)
        return breaks

    def _gap(self) -> float:
        mean = min(LONGEST_GAP_SECONDS, 0.6 * self.plan.seconds / max(1, self.plan.kills + self.plan.restarts))
        return self._chance.uniform(0, 2 * mean)

    def _released(self) -> int:
        """Let the next share of them go, after a break."""
        total = self.plan.tasks // 2
        planned = self.plan.kills + (self.plan.restarts if self._break_broker else 0)
        left = len(self._breaks)
        return total * (planned - left) // planned - total * (planned - left - 1) // planned

    def _break(self, what: str) -> bool:
        """Kill a worker, or restart the broker; return False if that is not possible yet."""
        if what == "kill":
            return self._kill_some_worker()
        if self._restart is not None or self._break_broker is None:
            return False
        self.in_flight += self.plan.workers * self.plan.tasks_at_once + 1  # the sender's
        self._restart = self._threads.submit(self._break_broker)
        self._note("restart begins")
        return True

    def _kill_some_worker(self) -> bool:
        victims = [name for name in self._started_at if self._may_be_killed(name)]
        if not victims:
            return False
        name = self._chance.choice(victims)
        pid = self._sandbox.pid(name)
        self._sandbox.kill(name)  # SIGKILL to the process group
        self.kills += 1
        self.in_flight += self.plan.tasks_at_once
        self._note(f"kill -9 of {name}", pid=pid)
        self._start_worker(name)
        return True

    def _may_be_killed(self, name: str) -> bool:
        """Return whether it has worked for a while: a kill must meet tasks."""
        now, since = time.time(), self.records.working_since.get(self._sandbox.pid(name) or 0)
        if since is None:
            return now - self._started_at[name] > IDLE_WORKER_SECONDS
        return now - since > self._lives[name]

    def _look_after_threads(self) -> None:
        if self.sender.problem is not None:
            raise self.sender.problem
        if self._restart is not None and self._restart.done():
            broken, self._restart = self._restart.result(), None
            self.restarts += 1
            if broken.is_crash:
                self.crashes.append(broken.at)
            self._next_break_at = time.monotonic() + self._gap()
            self._note(f"{broken.what}, and up again", since=broken.at)

    # --- workers ---

    def _start_worker(self, name: str) -> None:
        command = worker_command(
            chaos_project.__name__,
            f"--pool={self.plan.pool}",
            f"--concurrency={self.plan.tasks_at_once}",
            f"--hostname={name}@{self.prefix}",
            "--without-heartbeat",
            f"--logfile={self._folder / name}.log",
        )
        records = str(self._folder / "records.jsonl")
        run = {"configuration": self._configuration, "records": records, "pool": self.plan.pool}
        environment = worker_environment({chaos_project.RUN: json.dumps(run), "PYTHONWARNINGS": "ignore"})
        self._sandbox.spawn(name, command, environment)
        self._started_at[name] = time.time()
        self._lives[name] = self._gap()
        self._note(f"{name} started", pid=self._sandbox.pid(name))

    def _look_after_workers(self) -> None:
        for name in self._started_at:
            if self._sandbox.pid(name) is None:
                self.ended += 1
                said = self._sandbox.said(f"{name}.out")
                self._note(f"{name} ended by itself: {said}")
                self._view.say(f"{name} ended by itself, last saying: {said}")
                if self.ended > self.plan.workers * 5 + self.plan.restarts:
                    raise WorkersEnd(said=said)
                self._sandbox.kill(name)  # what is left of its group
                self._start_worker(name)

    def _stop_workers(self) -> None:
        self._view.say("stopping the workers")
        for name in self._started_at:
            self._sandbox.signal(name, signal.SIGTERM)
        for name in self._started_at:
            self._sandbox.terminate(name, within=STOP_SECONDS)
        self.records.read()

    def _note(self, what: str, **facts: object) -> None:
        append_line(self._folder / "events.jsonl", {"at": time.time(), "what": what, **facts})
