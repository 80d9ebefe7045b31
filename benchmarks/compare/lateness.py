"""How late retries come back: at idle, and beside tens of thousands that expire at the same time."""

from __future__ import annotations

import json
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from amqp.exceptions import AMQPError
from kombu.connection import Connection

from benchmarks.compare.numbers import percentile
from benchmarks.compare.stage import TookTooLong, fill, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from typing_extensions import Self

    from benchmarks.compare.stage import Stage

PER_SECOND = 20
LATE_SECONDS = 2
BEFORE_SECONDS = 3  # probes start so long before the first of the crowd is due
BESIDE_SECONDS = 20  # and are sent for so long at most
PATIENCE_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Late:
    """In ms, of so many retries; ``missing`` did not come back as long as we waited."""

    count: int
    p50: float
    p99: float
    most: float
    early: int
    missing: int

    @classmethod
    def of(cls, seconds: Sequence[float], *, expected: int) -> Late | None:
        """From what was noted."""
        if not seconds:
            return None
        return cls(
            count=expected,
            p50=1000 * percentile(seconds, 0.5),
            p99=1000 * percentile(seconds, 0.99),
            most=1000 * max(seconds),
            early=sum(each < 0 for each in seconds),
            missing=max(0, expected - len(seconds)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Lateness:
    """Retries of one worker alone, the same beside a crowd, and the crowd itself."""

    idle: Late | None
    beside: Late | None
    crowd: Late | None


class Collector(threading.Thread):
    """Takes the crowd from its queue, as fast as one Python process can."""

    def __init__(self, url: str, queue: str) -> None:
        super().__init__(daemon=True)
        self._url, self._queue = url, queue
        self.late: list[float] = []
        self._is_over = False

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over = True
        self.join()

    def run(self) -> None:
        with Connection(self._url) as connection, connection.channel() as channel:
            channel.basic_consume(self._queue, no_ack=True, callback=self._note)
            while not self._is_over:
                try:
                    connection.drain_events(timeout=0.5)
                except TimeoutError:  # noqa: PERF203 - nothing came
                    continue

    def _note(self, message: Any) -> None:
        self.late.append(time.time() - json.loads(message.body)[0][0])


class Filler(threading.Thread):
    """Publishes the crowd; where that takes longer than it waits, the first come back before the last have gone."""

    def __init__(self, *args: Any, seconds: float, **options: Any) -> None:
        super().__init__(daemon=True)
        self._fill = partial(fill, *args, seconds=seconds, **options)
        self._start_at = time.monotonic()
        self._problem: Exception | None = None
        #: When the first of them is due.
        self.due = self._start_at + seconds
        #: How many seconds it took, once it is done.
        self.took: float | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.join()
        if self._problem is not None:
            raise self._problem

    def run(self) -> None:
        try:
            self._fill()
        except (OSError, AMQPError) as problem:
            self._problem = problem
        self.took = time.monotonic() - self._start_at


def measure(stage: Stage, *, probes: int, crowd: int, say: Callable[[str], None]) -> Lateness:
    """The stage has two work queues: one for the probes, and one for the crowd to come back to.

    With Celery's countdown the crowd waits in the worker itself, and is run there; it has no other way.
    """
    is_held = stage.contender.key == "countdown"
    stage.has_prefetch_limit = not is_held  # see waiting.measure
    work, other = stage.queues
    retry = stage.captured("crowd")
    with stage.worker(queues=[work]) as worker, Collector(stage.vhost.url, other) as collector:
        worker.wait_until_ready()
        idle = trickle(stage, probes, seconds=probes / PER_SECOND)
        say(f"{crowd:,} expiring")
        with Filler(stage.vhost.url, retry, crowd, queue=work if is_held else other, seconds=stage.crowd_seconds) as it:
            it.join(max(BEFORE_SECONDS, stage.crowd_seconds - BEFORE_SECONDS))
            time.sleep(max(0.0, it.due - BEFORE_SECONDS - time.monotonic()))  # noqa: TID251 - until the first is due
            seconds = min(it.took or BESIDE_SECONDS, BESIDE_SECONDS) + BEFORE_SECONDS
            beside = trickle(stage, int(PER_SECOND * seconds), seconds=seconds)
        arrived = (lambda: stage.notes("crowd")) if is_held else (lambda: collector.late)
        try:
            wait_for(lambda: len(arrived()) >= crowd, what="the crowd", within=PATIENCE_SECONDS, every=0.5)
        except TookTooLong:
            say("some of the crowd are not back")
    return Lateness(idle=idle, beside=beside, crowd=Late.of(arrived(), expected=crowd))


def trickle(stage: Stage, count: int, *, seconds: float) -> Late | None:
    """So many tasks that are retried once, in so much time."""
    before = len(stage.notes("late"))
    with stage.sender() as send:
        start = time.monotonic()
        for number in range(count):
            time.sleep(max(0.0, start + seconds * number / count - time.monotonic()))  # noqa: TID251 - the pace
            send("late")
    with suppress(TookTooLong):
        wait_for(lambda: len(stage.notes("late")) >= before + count, what="probes", within=PATIENCE_SECONDS, every=0.2)
    return Late.of(stage.notes("late")[before:], expected=count)
