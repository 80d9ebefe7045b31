"""Choose where a message waits: the lane of its delay, the next lane of the grid, or the ladder."""

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

    RETRY = "retry"  # there may be many at once, and a little later is as good
    COUNTDOWN = "countdown"  # a countdown or an eta: any delay, meant exactly


@dataclass(frozen=True, slots=True)
class LaneRoute:
    """Wait in the lane of this length."""

    length_ms: int


@dataclass(frozen=True, slots=True)
class LadderRoute:
    """Wait on these rungs, highest first; together they are this long."""

    steps: tuple[int, ...]
    length_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitRoute:
    """Where to publish a message that waits, with which headers, and which objects this needs on the broker."""

    length_ms: int
    exchange: str
    routing_key: str
    headers: dict[str, bool]
    #: The objects that it needs besides its lane.
    needs: Topology = field(default_factory=Topology)
    #: The lane. Only broker/lanes.py may make it.
    lane: Topology | None = None

    @property
    def place(self) -> str:
        """A name for exchange and routing key, to remember whether the broker took messages there."""
        return place(self.exchange, self.routing_key)


def choose(  # noqa: PLR0913 - the choice depends on all of these
    delay_ms: int, *, wish: WaitKind, announced: frozenset[int], grid: float, limit_ms: int, ladder: Ladder
) -> LaneRoute | LadderRoute:
    """Choose the lane or the rungs for a delay.

    A lane is one hop, and on time with any number of messages, but each delay needs another queue. We use it for delays
    that tasks announced and, rounded up to a grid, for all retries: there may be very many of them. The ladder has all
    delays in a few queues, with one hop for each binary digit. We use it for countdowns and etas.
    """
    if wish is WaitKind.RETRY or (delay_ms in announced and delay_ms <= limit_ms):
        return LaneRoute(lane_ms(delay_ms, exact=announced, ratio=grid, limit_ms=limit_ms))
    steps = ladder.steps(delay_ms)
    return LadderRoute(steps, ladder.length_ms(steps))


def route(
    choice: LaneRoute | LadderRoute, names: Names, queue: WorkQueue, *, ladder: Ladder, lane_expires_ms: int = 0
) -> WaitRoute:
    """Return where a message of this work queue is published for this choice."""
    if isinstance(choice, LaneRoute):
        objects = lane(names, queue, choice.length_ms, expires_ms=lane_expires_ms)
        (binding,) = objects.bindings
        return WaitRoute(
            length_ms=choice.length_ms,
            exchange=binding.exchange,
            routing_key=binding.routing_key or queue.name,
            headers={},
            lane=objects,
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
