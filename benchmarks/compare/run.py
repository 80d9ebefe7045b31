"""The run: every measurement of every contender, the contenders of each measurement one after the other."""

from __future__ import annotations

import os
import sys
import time
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.compare import lateness, machine, throughput, waiting, wire
from benchmarks.compare.contenders import CLASSIC, COUNTDOWN, PIPELINED, QUORUM
from benchmarks.compare.numbers import middle
from benchmarks.compare.rabbit import Rabbit
from benchmarks.compare.stage import TookTooLong, stage
from celery_dlx_retry.testing import provide
from celery_dlx_retry.testing.node import start_private_node

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.compare.contenders import Contender
    from benchmarks.compare.sizes import Sizes
    from benchmarks.compare.stage import Stage

PARTS = ("throughput", "waiting", "lateness", "start", "growth", "wire", "also")
#: A root filesystem with another RabbitMQ, for the latency of new tasks there.
ALSO = "DLX_BENCH_ALSO_ROOT"

Results = dict[str, Any]


class Run:
    """Collects what is found; what does not come in time, or begins too late, stays None."""

    def __init__(self, sizes: Sizes, rabbit: Rabbit) -> None:
        self._sizes, self._rabbit = sizes, rabbit
        self._started_at = time.monotonic()
        self.skipped: list[str] = []

    def throughput(self) -> Results:
        """Each round has every contender once, so that whatever else the machine does reaches them all."""
        sizes, found = self._sizes, {}
        for pool, rounds in sizes.pools:
            rates: dict[str, list[Any]] = {}
            for _ in range(rounds):
                for contender in sizes.contenders:
                    if contender == PIPELINED and pool != sizes.pools[0][0]:
                        continue
                    for task in ("plain", "loop") if contender == COUNTDOWN else ("loop",):
                        key = contender.key if task == "loop" else task
                        rates.setdefault(key, []).append(self._rate(contender, pool, task))
            found[pool] = {
                key: {name: middle(each[name] for each in those if each) for name in ("per_second", "worker_ms", "broker_ms")}
                for key, those in rates.items()
            }
        return found

    def waiting(self) -> Results:
        """Memory, latency of new tasks, cost of further retries, recovery."""
        sizes, found = self._sizes, {}
        for contender in sizes.celerys:
            with self._step(f"waiting, {contender.title}") as step, stage(self._rabbit, contender) as it:
                found[contender.key] = step.found = asdict(
                    waiting.measure(
                        it,
                        depths=sizes.depths,
                        probes_at=sizes.probes_at,
                        probes=sizes.fresh,
                        retries=sizes.retries,
                        say=step.say,
                    )
                )
        return found

    def lateness(self) -> Results:
        """At idle and beside a crowd."""
        sizes, found = self._sizes, {}
        for contender in sizes.celerys:
            with self._step(f"lateness, {contender.title}") as step, stage(self._rabbit, contender, queues=2) as it:
                it.crowd_seconds = sizes.crowd_seconds
                late = lateness.measure(it, probes=sizes.late, crowd=sizes.crowd, say=step.say)
                found[contender.key] = step.found = asdict(late)
        return found

    def start(self) -> Results:
        """A worker with many tasks: the first one that a broker sees, and the next one."""
        sizes, times = self._sizes, {}
        for _ in range(sizes.starts):
            for contender in sizes.celerys:
                with self._step(f"start, {contender.title}") as step, stage(self._rabbit, contender) as it:
                    first, again = (waiting.first_task(it, tasks=sizes.tasks) for _ in range(2))
                    step.found = {"first": first, "again": again}
                    times.setdefault(contender.key, []).append(step.found)
        return {
            key: {when: middle(each[when] for each in those) for when in ("first", "again")}
            for key, those in times.items()
        }

    def growth(self) -> Results:
        """The same tasks in one work queue and in many."""
        found: Results = {}
        for count in self._sizes.work_queues:
            for contender in (CLASSIC, QUORUM):
                title = f"{count} work queues, {contender.title}"
                with self._step(title) as step, stage(self._rabbit, contender, queues=count) as it:
                    step.found = asdict(self._measured(it, "prefork", "loop"))
                    found.setdefault(contender.key, {})[count] = step.found
        return found

    def wire(self) -> Results:
        """Bytes."""
        found: Results = {}
        for contender in self._sizes.contenders if self._sizes.wire else ():
            if contender == PIPELINED:
                continue
            with self._step(f"bytes, {contender.title}") as step, stage(self._rabbit, contender) as it:
                found[contender.key] = step.found = wire.measure(it, count=self._sizes.wire)
        return found

    def also(self) -> Results:
        """New tasks while retries wait, on another RabbitMQ, if there is one."""
        root = os.environ.get(ALSO)
        if not root:
            return {}
        sizes, found = self._sizes, {}
        with start_private_node(Path(root).expanduser().resolve()) as node:
            rabbit = Rabbit(node)
            for contender in sizes.celerys:
                title = f"RabbitMQ {node.version}, {contender.title}"
                with self._step(title) as step, stage(rabbit, contender) as it:
                    seen = waiting.measure(
                        it, depths=(sizes.probes_at,), probes_at=sizes.probes_at, probes=sizes.fresh,
                        retries=sizes.retries, say=step.say,
                    )  # fmt: skip
                    found[contender.key] = step.found = asdict(seen)
        return {"rabbitmq": node.version, "waiting": found}

    def _rate(self, contender: Contender, pool: str, task: str) -> Results | None:
        what = "plain tasks" if task == "plain" else contender.title
        with self._step(f"{pool}, {what}") as step, stage(self._rabbit, contender) as it:
            step.found = asdict(self._measured(it, pool, task))
            return step.found
        return None

    def _measured(self, it: Stage, pool: str, task: str) -> throughput.Rate:
        sizes = self._sizes
        crowd = sizes.circulating * (2 if task == "plain" else 1)
        return throughput.measure(it, pool, task=task, crowd=crowd, warm=sizes.warm, seconds=sizes.window_seconds)

    @contextmanager
    def _step(self, title: str) -> Iterator[Step]:
        """One line of progress; a step that takes too long is told and passed over, and so is one that is too late."""
        step = Step(title, time.monotonic() - self._started_at)
        try:
            if time.monotonic() > self._started_at + 60 * self._sizes.minutes:
                raise TookTooLong("time is up")
            yield step
        except TookTooLong as problem:
            self.skipped.append(f"{title}: {problem}")
            step.end(f"passed over: {problem}")
        else:
            step.end(brief(step.found))


class Step:
    """A line of progress on standard error."""

    def __init__(self, title: str, seconds: float) -> None:
        self.found: Any = None
        self._at = time.monotonic()
        sys.stderr.write(f"{seconds // 60:3.0f}:{seconds % 60:02.0f}  {title} …")
        sys.stderr.flush()

    def say(self, what: str) -> None:
        sys.stderr.write(f" {what} …")
        sys.stderr.flush()

    def end(self, what: str) -> None:
        sys.stderr.write(f" {what} ({time.monotonic() - self._at:.0f} s)\n")
        sys.stderr.flush()


def brief(found: Any) -> str:
    """The figure of one step that a waiting person wants to see."""
    if isinstance(found, float):
        return f"{found:,.0f}"
    if not isinstance(found, dict):
        return ""
    if "per_second" in found:
        return f"{found['per_second']:,.0f}/s, CPU {found['worker_ms']:.2f} + {found['broker_ms']:.2f} ms"
    if "again" in found:
        return f"{found['first'] or 0:.2f} s, {found['again'] or 0:.2f} s"
    if "beside" in found:
        return ", ".join(f"{name} p99 {late['p99']:,.0f} ms" for name, late in found.items() if late)
    grown = [f"{mb:.1f} MB" for mb in found["worker_mb"].values() if mb is not None]
    return f"worker +{', +'.join(grown)}" if grown else "blocked"


def run(sizes: Sizes, parts: tuple[str, ...], *, command: str) -> Results:
    """Measure these parts on a broker of our own."""
    load, start = os.getloadavg()[0], time.monotonic()
    with provide(say=lambda _: None) as broker:
        rabbit = Rabbit(broker)
        it = Run(sizes, rabbit)
        measured: dict[str, Callable[[], Results]] = {part: getattr(it, part) for part in PARTS if part in parts}
        found: Results = {part: measure() for part, measure in measured.items()}
    found["about"] = {
        **machine.described(),
        "RabbitMQ": rabbit.version,
        "command": command,
        "date": time.strftime("%Y-%m-%d"),
        "load at the start": f"{load:.1f}",
        "minutes": f"{(time.monotonic() - start) / 60:.1f}",
        "passed over": it.skipped,
    }
    return found
