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
from benchmarks.compare.contenders import CELERYS, CLASSIC, COUNTDOWN, FLOOR, PIPELINED, QUORUM, STEPS, UNLIMITED
from benchmarks.compare.gauge import gauge
from benchmarks.compare.numbers import figure, middle
from benchmarks.compare.rabbit import Rabbit
from benchmarks.compare.stage import TookTooLong, stage
from tests.provision import provide
from tests.provision.node import start_private_node

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from benchmarks.compare.contenders import Contender
    from benchmarks.compare.gauge import Gauge
    from benchmarks.compare.sizes import Sizes
    from benchmarks.compare.stage import Stage

#: What a slow machine has no time for is the last of them.
PARTS = ("throughput", "lateness", "waiting", "growth", "fresh", "pools", "start", "wire", "steps")
#: A root filesystem with another RabbitMQ, for the latency of new tasks there.
ALSO = "DLX_BENCH_ALSO_ROOT"
#: About how long a measurement takes that says nothing else.
STEP_SECONDS = 10.0

Results = dict[str, Any]


class Run:
    """Collects results. It omits, and names, measurements that are late or would begin too late."""

    def __init__(self, sizes: Sizes, rabbit: Rabbit, gauge: Gauge) -> None:
        self._sizes, self._rabbit, self._gauge = sizes, rabbit, gauge
        self._started_at = time.monotonic()
        self.skipped: list[str] = []

    def throughput(self) -> Results:
        """Of everybody, in the pool that most have."""
        return {self._sizes.pool: self._rounds(self._sizes.pool, self._sizes.contenders, turns=self._sizes.turns)}

    def pools(self) -> Results:
        """The same in the others, once."""
        return {pool: self._rounds(pool, CELERYS, turns=1) for pool in self._sizes.pools}

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
            depths = sizes.depths_of(it.contender)
            return waiting.measure(it, depths=depths, retries=sizes.retries, batches=sizes.batches, say=say)

        return self._each("waiting", sizes.celerys, measure, seconds=sizes.waiting_seconds)

    def lateness(self) -> Results:
        """At idle and beside a crowd."""
        sizes = self._sizes

        def measure(it: Stage, *, say: Callable[[str], None]) -> lateness.Lateness:
            it.crowd_seconds = sizes.crowd_seconds_of(it.contender)
            return lateness.measure(it, probes=sizes.late, crowd=sizes.crowd, say=say)

        return self._each("lateness", sizes.celerys, measure, queues=2, seconds=sizes.lateness_seconds)

    def fresh(self) -> Results:
        """New tasks while retries wait, here and on another RabbitMQ, if there is one."""
        found = {self._rabbit.version: self._fresh(self._rabbit)}
        root = os.environ.get(ALSO)
        if root and self._has(STEP_SECONDS):
            with start_private_node(Path(root).expanduser().resolve()) as node:
                found[node.version] = self._fresh(Rabbit(node))
        return found

    def start(self) -> Results:
        """A worker with many tasks: the first one that a broker sees, and the next one."""
        times: dict[str, list[Any]] = {}

        def measure(it: Stage, *, say: object) -> Results:  # noqa: ARG001 - it prints nothing
            return {when: waiting.first_task(it, tasks=self._sizes.tasks) for when in ("first", "again")}

        for _ in range(self._sizes.starts):
            for key, found in self._each("start", self._sizes.celerys, measure).items():
                times.setdefault(key, []).append(found)
        return {
            key: {when: middle(each[when] for each in those) for when in ("first", "again")}
            for key, those in times.items()
        }

    def growth(self) -> Results:
        """The same tasks in one work queue and in many, in turns."""
        found: Results = {}
        others = ((COUNTDOWN, "plain"), (UNLIMITED, "loop"))
        for turn in range(self._sizes.growths):
            for contender, task in ((CLASSIC, "loop"), (QUORUM, "loop"), *(others if not turn else ())):
                for count in self._sizes.work_queues:
                    what = f"{count} work queue{'s' if count > 1 else ''}"
                    rate = self._throughput(what, contender, "prefork", task, queues=count)
                    found.setdefault(_key(contender, task), {}).setdefault(count, []).append(rate)
        return found

    def wire(self) -> Results:
        """Bytes."""
        if not self._sizes.wire:
            return {}
        contenders = (*self._sizes.celerys, FLOOR)
        return self._each("bytes", contenders, partial(wire.measure, count=self._sizes.wire))

    def _fresh(self, rabbit: Rabbit) -> Results:
        sizes = self._sizes

        def measure(it: Stage, *, say: object) -> waiting.Fresh:  # noqa: ARG001 - it prints nothing
            rounds = sizes.rounds_of(it.contender)
            return waiting.measure_fresh(it, waiting=sizes.probes_at, probes=sizes.fresh, rounds=rounds)

        what = f"new tasks, RabbitMQ {rabbit.version}"
        return self._each(what, sizes.celerys, measure, rabbit=rabbit, seconds=sizes.fresh_seconds)

    def _rounds(self, pool: str, contenders: Iterable[Contender], *, turns: int) -> Results:
        """Each round has every contender once, so that whatever else the machine does reaches them all."""
        rates: dict[str, list[Any]] = {}
        for turn in range(turns):
            for contender in contenders:
                if contender is PIPELINED and turn:
                    continue  # no other one is compared with it
                for task in self._tasks_of(contender, pool):
                    rate = self._throughput(pool, contender, pool, task)
                    rates.setdefault(_key(contender, task), []).append(rate)
        return rates

    def _tasks_of(self, contender: Contender, pool: str) -> tuple[str, ...]:
        """What a task costs that succeeds is measured with Celery's own, where it is compared."""
        return ("plain", "loop") if contender is COUNTDOWN and pool == self._sizes.pool else ("loop",)

    def _throughput(self, what: str, contender: Contender, pool: str, task: str, **options: Any) -> Any:
        sizes = self._sizes

        def measure(it: Stage, *, say: object) -> throughput.Rate:  # noqa: ARG001 - all quick
            crowd = sizes.circulating * (3 if task == "plain" else 1)
            return throughput.measure(it, pool, task=task, crowd=crowd, warm=sizes.warm, seconds=sizes.window_seconds)

        title = f"{what}, {'plain tasks' if task == 'plain' else contender.title}"
        return self._step(title, contender, measure, **options)

    def _has(self, seconds: float) -> bool:
        """Whether there is so much time left."""
        return time.monotonic() + seconds < self._started_at + 60 * self._sizes.minutes

    def _each(
        self,
        what: str,
        contenders: Iterable[Contender],
        measure: Any,
        *,
        seconds: Callable[[Contender], float] = lambda _: STEP_SECONDS,
        **options: Any,
    ) -> Results:
        found = {
            each.key: self._step(f"{what}, {each.title}", each, measure, seconds=seconds(each), **options)
            for each in contenders
        }
        return {key: value for key, value in found.items() if value is not None}

    def _step(  # noqa: PLR0913
        self,
        title: str,
        contender: Contender,
        measure: Any,
        *,
        queues: int = 1,
        rabbit: Rabbit | None = None,
        seconds: float = STEP_SECONDS,
    ) -> Any:
        """One measurement and its line of progress; None if it takes too long, or would be over too late."""
        if not self._has(seconds):
            self.skipped.append(f"{title}: time was up")
            return None
        step = Step(title, time.monotonic() - self._started_at)
        try:
            with stage(rabbit or self._rabbit, contender, queues=queues, gauge=self._gauge) as it:
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


def _key(contender: Contender, task: str) -> str:
    return "plain" if task == "plain" else contender.key


def brief(found: Any) -> str:
    """The figures of one step that a waiting person wants to see."""
    if not isinstance(found, dict):
        return f"{found:,.0f}"
    if "per_second" in found:
        rate = f"{found['per_second']:,.0f}/s, CPU {found['worker_ms']:.2f} + {found['broker_ms']:.2f} ms"
        return f"{rate}, slowness {found['slowness']:.2f}"
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
    with gauge() as speed, provide(say=lambda _: None) as broker:
        rabbit = Rabbit(broker)
        speed.settle()  # it has seen all of the broker's start
        it = Run(sizes, rabbit, speed)
        before = speed.read()
        measured: dict[str, Callable[[], Results]] = {part: getattr(it, part) for part in PARTS if part in parts}
        found: Results = {part: measure() for part, measure in measured.items()}
        slowness = speed.slowness_since(before)
    found["about"] = {
        **machine.described(),
        "RabbitMQ": rabbit.version,
        "command": command,
        "date": time.strftime("%Y-%m-%d"),
        "load at the start": f"{load:.1f}",
        "slowness": f"{slowness:.2f}",
        "minutes": f"{(time.monotonic() - start) / 60:.1f}",
        "passed over": it.skipped,
    }
    return found
