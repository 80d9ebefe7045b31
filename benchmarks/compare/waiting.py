"""What retries cost while they wait: memory of worker and broker, further retries, a crash; and new tasks' latency."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING

from amqp import Message

from benchmarks.compare import machine
from benchmarks.compare.meter import Meter
from benchmarks.compare.numbers import middle, percentile
from benchmarks.compare.stage import TookTooLong, fill, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from benchmarks.compare.stage import Stage

WARM = 100
PAUSE_SECONDS = 0.02
PATIENCE_SECONDS = 5.0
RECOVERY_SECONDS = 60.0
SETTLE_SECONDS = 1.0


@dataclass(slots=True, kw_only=True)
class Waiting:
    """By number of waiting retries; None is what did not come in time."""

    #: MB more than with none waiting.
    worker_mb: dict[int, float] = field(default_factory=dict)
    broker_bytes: float | None = None
    message_bytes: int = 0
    #: ms of CPU, of worker and broker together, for a task that fails and whose retry joins those that wait.
    retry_ms: dict[int, float | None] = field(default_factory=dict)
    queues: int = 0
    celerys_queues: int = 0
    recovery_seconds: float | None = None


def measure(stage: Stage, *, depths: Sequence[int], retries: int, batches: int, say: Callable[[str], None]) -> Waiting:
    """Fill up to each depth in turn, with one worker that lives through all of it; then kill it.

    With its default prefetch count an idle worker of Celery takes in ten countdowns a second, more or less: its event
    loop misses what arrives while it raises the count. So that it can hold them at all, here it has no limit.
    """
    stage.has_prefetch_limit = stage.contender.key != "countdown"
    found = Waiting()
    retry = stage.captured("once")
    found.message_bytes = size_of(retry)
    with stage.worker() as worker:
        worker.wait_until_ready()
        warm_up(stage)
        names = stage.vhost.queues()
        found.celerys_queues = sum(name.startswith("celery_delayed") for name in names)
        found.queues = sum("pidbox" not in name for name in names) - found.celerys_queues
        cost(stage, worker.pid, retries, batches)  # what the first few hundred take, they take once
        waiting = start = WARM + retries * batches
        before, broker_before = machine.memory_mb(worker.pid), stage.rabbit.memory_mb()
        for depth in depths:
            say(f"{depth:,} waiting")
            fill(stage.vhost.url, retry, depth - waiting)
            wait_for(lambda: not stage.ready(stage.queues[0]), what="an empty work queue", within=180, every=0.2)
            stage.rabbit.come_to_rest()
            found.worker_mb[depth] = machine.memory_mb(worker.pid) - before
            found.broker_bytes = 1e6 * (stage.rabbit.memory_mb() - broker_before) / max(1, depth - start)
            found.retry_ms[depth] = cost(stage, worker.pid, retries, batches)
            waiting = depth + retries * batches
        worker.kill()
    say("after kill -9")
    found.recovery_seconds = first_task(stage, within=RECOVERY_SECONDS)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Fresh:
    """Median and 99th percentile in ms of how long a new task takes to its worker; None: it did not come there."""

    idle: tuple[float, float] | None
    beside: tuple[float, float] | None
    #: Beside of idle, in each round, by the medians.
    times: list[float]
    waiting: int


def measure_fresh(stage: Stage, *, waiting: int, probes: int, rounds: int) -> Fresh:
    """New tasks, one after the other, while none and while so many retries wait, in turns.

    In turns, and each time compared with those before and after, because a shared machine is slower at one time than
    at another, by more than what is looked for.
    """
    retry = stage.captured("once")
    with stage.worker() as worker:
        worker.wait_until_ready()
        fresh(stage, WARM // 5)
        idle, beside = [fresh(stage, probes)], []
        for _ in range(rounds):
            fill(stage.vhost.url, retry, waiting)
            time.sleep(SETTLE_SECONDS / 2)  # noqa: TID251 - what the broker does behind a confirm
            beside.append(fresh(stage, probes))
            if len(beside[-1]) < probes:
                break  # they wait in the worker itself, and hold it up
            stage.vhost.empty()
            time.sleep(SETTLE_SECONDS / 2)  # noqa: TID251 - likewise
            idle.append(fresh(stage, probes))
    around = [median(before + after) for before, after in pairwise(idle)]
    return Fresh(
        idle=_spread(idle),
        beside=_spread(beside) if len(around) == rounds else None,
        times=[median(those) / least for those, least in zip(beside, around, strict=False)],
        waiting=waiting,
    )


def warm_up(stage: Stage) -> None:
    """All is imported, connected and declared that a first retry needs."""
    before = stage.runs()
    stage.send("once", WARM)
    wait_for(lambda: stage.runs() >= before + WARM, what="the first retries")
    time.sleep(SETTLE_SECONDS)  # noqa: TID251 - they have run, but are on their way yet


def fresh(stage: Stage, count: int) -> list[float]:
    """How long new tasks were on their way, one after the other, in seconds; of those that ran in time."""
    stage.forget()
    with stage.sender() as send:
        for _ in range(count):
            send("fresh", time.time())
            time.sleep(PAUSE_SECONDS)  # noqa: TID251 - a trickle
    with suppress(TookTooLong):
        wait_for(lambda: len(stage.notes("fresh")) >= count, what="new tasks", within=PATIENCE_SECONDS)
    return stage.notes("fresh")


def _spread(rounds: list[list[float]]) -> tuple[float, float]:
    times = [each for those in rounds for each in those]
    return 1000 * percentile(times, 0.5), 1000 * percentile(times, 0.99)


def cost(stage: Stage, pid: int, retries: int, batches: int) -> float | None:
    """CPU of a further retry: the median of some batches."""
    return middle(one_way(stage, pid, retries) for _ in range(batches))


def one_way(stage: Stage, pid: int, count: int) -> float | None:
    """CPU for each of so many tasks that fail, and wait on for longer than we do."""
    runs, meter = stage.runs(), Meter(stage, pid)
    stage.send("once", count)
    try:
        wait_for(lambda: stage.runs() >= runs + count, what="retries")
    except TookTooLong:
        return None
    time.sleep(SETTLE_SECONDS / 2)  # noqa: TID251 - the last ones are on their way
    used = meter.read()
    return 1000 * (used.worker_seconds + used.broker_seconds) / count


def first_task(stage: Stage, *, tasks: int = 0, within: float = 60.0) -> float | None:
    """Seconds from the start of a worker until it runs a task that is sent at that moment."""
    stage.forget()
    with stage.worker(tasks=tasks) as worker, stage.sender() as send:
        send("fresh", worker.started_at)
        try:
            wait_for(
                lambda: bool(stage.notes("fresh")) or worker.is_dead(), what="the first task", within=within, every=0.01
            )
        except TookTooLong:
            return None
        worker.wait_until_ready()
        return stage.notes("fresh")[0]


def size_of(retry: dict[str, object]) -> int:
    """Bytes of properties, headers and body, as RabbitMQ gets and keeps them."""
    properties = dict(retry["properties"])  # type: ignore[call-overload]
    body = str(retry["body"])
    return len(Message(body, **properties)._serialize_properties()) + len(body)  # noqa: SLF001
