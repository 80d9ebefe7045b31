"""The ladder: any delay, exact to its resolution, in a small and fixed number of queues.

Rung *n* is a wait queue of resolution x 2^n. A delay is a sum of rungs: its binary digits. A message enters at its
highest digit and steps down inside the broker, until no digit is left and it is back in its work queue.

Each rung has an exchange with one binding: a message with the rung's header waits there. Every other message goes to
its alternate exchange, which is the next rung below. The routing key is always the name of the work queue. No message
passes a queue twice, which RabbitMQ 3 would take for a cycle.

Below the last rung each work queue has a landing queue. All work queues share the rungs, and a landing queue accepts
every message: a work queue that accepts none stops only its own landing queue, and no rung.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from celery_dlx_retry.topology.objects import wait_queue
from celery_dlx_retry.topology.specs import BindingSpec, ExchangeSpec, QueueSpec, Topology
from celery_dlx_retry.wire.headers import RUNG

if TYPE_CHECKING:
    from collections.abc import Mapping

    from celery_dlx_retry.settings import Settings
    from celery_dlx_retry.topology.names import Names


@dataclass(frozen=True, slots=True, kw_only=True)
class Ladder:
    """A number of rungs. The lowest rung is as long as the resolution."""

    resolution_ms: int
    rungs: int

    @classmethod
    def of(cls, settings: Settings) -> Ladder:
        """Return the ladder of these settings. Its highest rung is not longer than their range."""
        resolution_ms = settings.ladder_resolution_ms
        return cls(resolution_ms=resolution_ms, rungs=(settings.ladder_range_ms // resolution_ms).bit_length())

    @property
    def longest_ms(self) -> int:
        """Return the longest wait in one pass: all rungs."""
        return self.resolution_ms * ((1 << self.rungs) - 1)

    def steps(self, delay_ms: int) -> tuple[int, ...]:
        """Return the rungs for a delay, highest first, rounded up; all of them if the delay is longer."""
        units = -(-min(max(delay_ms, 1), self.longest_ms) // self.resolution_ms)
        return tuple(number for number in reversed(range(self.rungs)) if units >> number & 1)

    def length_ms(self, steps: tuple[int, ...]) -> int:
        """Return how long these rungs are together."""
        return self.resolution_ms * sum(1 << number for number in steps)


def headers_of(steps: tuple[int, ...]) -> dict[str, bool]:
    """Return the headers that lead a message over these rungs."""
    return {_header(number): True for number in steps}


def skipped_rungs(names: Names, ladder: Ladder, headers: Mapping[Any, Any]) -> set[int]:
    """Return the rungs on which a message should have waited and did not: their queues are missing."""
    deaths = headers.get("x-death")
    rows = deaths if isinstance(deaths, list) else ()
    passed = {str(row.get("queue")) for row in rows if isinstance(row, dict)}
    return {
        number
        for number in range(ladder.rungs)
        if _header(number) in headers and names.rung(ladder.resolution_ms, number) not in passed
    }


@lru_cache(maxsize=8)
def rungs(names: Names, ladder: Ladder) -> Topology:
    """Return all rungs, lowest first."""
    exchanges: list[ExchangeSpec] = []
    queues: list[QueueSpec] = []
    bindings: list[BindingSpec] = []
    below = names.landings()
    exchanges.append(ExchangeSpec(name=below, kind="direct", arguments=(("alternate-exchange", names.orphans()),)))
    for number in range(ladder.rungs):
        name = names.rung(ladder.resolution_ms, number)
        exchanges.append(ExchangeSpec(name=name, kind="headers", arguments=(("alternate-exchange", below),)))
        queues.append(wait_queue(names, name, delay_ms=ladder.resolution_ms << number, then=below))
        bindings.append(BindingSpec(exchange=name, queue=name, arguments=(("x-match", "all"), (_header(number), True))))
        below = name
    return Topology(exchanges=tuple(exchanges), queues=tuple(queues), bindings=tuple(bindings))


def _header(number: int) -> str:
    return f"{RUNG}{number:02d}"
