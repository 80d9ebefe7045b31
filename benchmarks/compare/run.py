"""The run: every measurement of every contender, the contenders of each measurement one after the other."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import asdict, is_dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from amqp.exceptions import AMQPError

from benchmarks.compare import lateness, machine, throughput, waiting, wire
from benchmarks.compare.contenders import CLASSIC, COUNTDOWN, PIPELINED, QUORUM, STEPS
from benchmarks.compare.numbers import figure, middle
from benchmarks.compare.rabbit import Rabbit
from benchmarks.compare.stage import TookTooLong, stage
from celery_dlx_retry.testing import provide
from celery_dlx_retry.testing.node import start_private_node

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from benchmarks.compare.contenders import Contender
    from benchmarks.compare.sizes import Sizes
    from benchmarks.compare.stage import Stage

#: The long ones last: what begins too late is left out.
PARTS = ("throughput", "steps", "fresh", "start", "growth", "wire", "waiting", "lateness")
#: A root filesystem with another RabbitMQ, for the latency of new tasks there.
ALSO = "DLX_BENCH_ALSO_ROOT"
RATES = ("per_second", "worker_ms", "broker_ms")

Results = dict[str, Any]


class Run:
    """Collects what is found; what does not come in time, or would begin too late, is left out and told."""

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
                        title = f"{pool}, {'plain tasks' if task == 'plain' else contender.title}"
                        rate = self._step(title, contender, partial(self._rate, pool=pool, task=task))
                        rates.setdefault(contender.key if task == "loop" else task, []).append(rate or {})
            found[pool] = {
                key: {name: middle(each.get(name) for each in those) for name in RATES} for key, those in rates.items()
            }
        return found

    def steps(self) -> Results:
        """What each step of a retry's way costs the broker, all at one pace."""
        pace = self._sizes.steps
        if not pace:
            return {}

        def measure(it: Stage, *, say: object) -> throughput.Rate:  # noqa: ARG001 - all quick
            seconds = self._sizes.window_seconds
            return throughput.measure(it, "solo", task="loop", crowd=pace, warm=pace, seconds=seconds, per_second=pace)

        return self._each(f"{pace} a second", STEPS, measure)

    def waiting(self) -> Results:
        """Memory, cost of further retries, recovery."""
        sizes = self._sizes

        def measure(it: Stage, *, say: Callable[[str], None]) -> waiting.Waiting:
            return waiting.measure(it, depths=sizes.depths_of(it.contender), retries=sizes.retries, say=say)

        return self._each("waiting", sizes.celerys, measure)

    def lateness(self) -> Results:
        """At idle and beside a crowd."""
        sizes = self._sizes

        def measure(it: Stage, *, say: Callable[[str], None]) -> lateness.Lateness:
            it.crowd_seconds = sizes.crowd_seconds_of(it.contender)
            return lateness.measure(it, probes=sizes.late, crowd=sizes.crowd, say=say)

        longest_last = sorted(sizes.celerys, key=lambda contender: contender.patience)
        return self._each("lateness", longest_last, measure, queues=2)

    def fresh(self) -> Results:
        """New tasks while retries wait, here and on another RabbitMQ, if there is one."""
        found = {self._rabbit.version: self._fresh(self._rabbit)}
        if root := os.environ.get(ALSO):
            with start_private_node(Path(root).expanduser().resolve()) as node:
                found[node.version] = self._fresh(Rabbit(node))
        return found

    def start(self) -> Results:
        """A worker with many tasks: the first one that a broker sees, and the next one."""
        times: dict[str, list[Any]] = {}

        def measure(it: Stage, *, say: object) -> Results:  # noqa: ARG001 - nothing to tell
            return {when: waiting.first_task(it, tasks=self._sizes.tasks) for when in ("first", "again")}

        for _ in range(self._sizes.starts):
            for key, found in self._each("start", self._sizes.celerys, measure).items():
                times.setdefault(key, []).append(found)
        return {
            key: {when: middle(each[when] for each in those) for when in ("first", "again")}
            for key, those in times.items()
        }

    def growth(self) -> Results:
        """The same tasks in one work queue and in many."""
        found: Results = {}
        for count in self._sizes.work_queues:
            measure = partial(self._rate, pool="prefork", task="loop")
            contenders = (COUNTDOWN, CLASSIC, QUORUM)
            for key, rate in self._each(f"{count} work queues", contenders, measure, queues=count).items():
                found.setdefault(key, {})[count] = rate
        return found

    def wire(self) -> Results:
        """Bytes."""
        if not self._sizes.wire:
            return {}
        contenders = [each for each in self._sizes.contenders if each != PIPELINED]
        return self._each("bytes", contenders, partial(wire.measure, count=self._sizes.wire))

    def _fresh(self, rabbit: Rabbit) -> Results:
        sizes = self._sizes
        measure = partial(waiting.measure_fresh, waiting=sizes.probes_at, probes=sizes.fresh, rounds=sizes.rounds)
        return self._each(f"new tasks, RabbitMQ {rabbit.version}", sizes.celerys, measure, rabbit=rabbit)

    def _rate(self, it: Stage, *, say: object, pool: str, task: str) -> throughput.Rate:  # noqa: ARG002
        sizes = self._sizes
        crowd = sizes.circulating * (2 if task == "plain" else 1)
        return throughput.measure(it, pool, task=task, crowd=crowd, warm=sizes.warm, seconds=sizes.window_seconds)

    def _each(self, what: str, contenders: Iterable[Contender], measure: Any, **options: Any) -> Results:
        found = {each.key: self._step(f"{what}, {each.title}", each, measure, **options) for each in contenders}
        return {key: value for key, value in found.items() if value is not None}

    def _step(
        self, title: str, contender: Contender, measure: Any, *, queues: int = 1, rabbit: Rabbit | None = None
    ) -> Any:
        """One measurement and its line of progress; None if it takes too long, or time is up."""
        now = time.monotonic()
        if now > self._started_at + 60 * self._sizes.minutes:
            self.skipped.append(f"{title}: time was up")
            return None
        step = Step(title, now - self._started_at)
        try:
            with stage(rabbit or self._rabbit, contender, queues=queues) as it:
                found = measure(it, say=step.say)
        except (TookTooLong, OSError, AMQPError) as problem:
            self.skipped.append(f"{title}: {problem}")
            step.end(f"passed over: {problem}")
            return None
        found = asdict(found) if is_dataclass(found) else found
        step.end(brief(found))
        return found


class Step:
    """A line of progress on standard error."""

    def __init__(self, title: str, seconds: float) -> None:
        self.found: Any = None
        self._at = time.monotonic()
        sys.stderr.write(f"{int(seconds) // 60:3}:{int(seconds) % 60:02}  {title}: ")
        sys.stderr.flush()

    def say(self, what: str) -> None:
        """On the way."""
        sys.stderr.write(f"{what} … ")
        sys.stderr.flush()

    def end(self, what: str) -> None:
        """What came of it."""
        sys.stderr.write(f"{what} ({time.monotonic() - self._at:.0f} s)\n")
        sys.stderr.flush()


def brief(found: Any) -> str:
    """The figures of one step that a waiting person wants to see."""
    if not isinstance(found, dict):
        return f"{found:,.0f}"
    if "per_second" in found:
        return f"{found['per_second']:,.0f}/s, CPU {found['worker_ms']:.2f} + {found['broker_ms']:.2f} ms"
    if "again" in found:
        return f"{figure(found['first'])} s, {figure(found['again'])} s"
    if "crowd" in found:
        return ", ".join(f"{name} p99 {late['p99']:,.0f} ms" for name, late in found.items() if late)
    if "idle" in found:
        return " and ".join(f"{figure(found[when] and found[when][0])} ms" for when in ("idle", "beside"))
    return ", ".join(f"{mb:+.1f} MB" for mb in found["worker_mb"].values())


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
