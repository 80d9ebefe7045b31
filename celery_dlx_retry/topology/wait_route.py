"""Which way a message waits: the lane of its delay, the next lane of the grid, or the ladder."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from celery_dlx_retry.topology.ladder import headers_of, rungs
from celery_dlx_retry.topology.lanes import lane_ms
from celery_dlx_retry.topology.objects import landing, lane
from celery_dlx_retry.topology.specs import Topology

if TYPE_CHECKING:
    from celery_dlx_retry.topology.ladder import Ladder
    from celery_dlx_retry.topology.names import Names, WorkQueue


class WaitKind(Enum):
    """What the wait is for."""

    RETRY = "retry"  # many at once, and a little later is as good
    COUNTDOWN = "appointment"  # a countdown or an eta: any time, meant exactly


@dataclass(frozen=True, slots=True)
class LaneRoute:
    """Wait in the lane of this length."""

    length_ms: int


@dataclass(frozen=True, slots=True)
class LadderRoute:
    """Wait on these rungs, highest first, which are so long together."""

    steps: tuple[int, ...]
    length_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitRoute:
    """How a choice is taken: where to publish, under which headers, and what must exist on the broker for it."""

    length_ms: int
    exchange: str
    routing_key: str
    headers: dict[str, bool]
    #: What it needs besides its lane.
    needs: Topology = field(default_factory=Topology)
    #: The lane, which only broker/lanes.py may make.
    lane: Topology | None = None

    @property
    def place(self) -> str:
        """A name for where it leads, to remember whether messages were taken there."""
        return place(self.exchange, self.routing_key)


def choose(  # noqa: PLR0913 - all that the choice depends on
    delay_ms: int, *, wish: WaitKind, announced: frozenset[int], grid: float, limit_ms: int, ladder: Ladder
) -> LaneRoute | LadderRoute:
    """Which way when.

    A lane is one hop, on time with any number of messages in it, but one more queue for each delay. So it is for
    delays that were announced, and, on a grid, for retries: they come in masses, and wait a tenth longer for it.
    The ladder has all delays in a few queues, with a hop for each binary digit: for appointments, which are few.
    """
    if wish is WaitKind.RETRY or (delay_ms in announced and delay_ms <= limit_ms):
        return LaneRoute(lane_ms(delay_ms, exact=announced, ratio=grid, limit_ms=limit_ms))
    steps = ladder.steps(delay_ms)
    return LadderRoute(steps, ladder.length_ms(steps))


def route(
    choice: LaneRoute | LadderRoute, names: Names, queue: WorkQueue, *, ladder: Ladder, lane_expires_ms: int = 0
) -> WaitRoute:
    """Return the way of a message of this work queue."""
    if isinstance(choice, LaneRoute):
        it = lane(names, queue, choice.length_ms, expires_ms=lane_expires_ms)
        (binding,) = it.bindings
        return WaitRoute(
            length_ms=choice.length_ms,
            exchange=binding.exchange,
            routing_key=binding.routing_key or queue.name,
            headers={},
            lane=it,
        )
    return WaitRoute(
        length_ms=choice.length_ms,
        exchange=names.rung(ladder.resolution_ms, choice.steps[0]),
        routing_key=queue.name,
        headers=headers_of(choice.steps),
        needs=rungs(names, ladder) | landing(names, queue),
    )


def place(exchange: str, routing_key: str) -> str:
    """Return one name for an exchange and a routing key."""
    return f"{exchange} {routing_key}"
