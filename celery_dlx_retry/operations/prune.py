"""Delete lanes in which nothing waits. A retry that needs one makes it again."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from celery_dlx_retry.broker import lanes as lanes_on_broker
from celery_dlx_retry.operations.monitor import NO_MONITOR, Monitor
from celery_dlx_retry.operations.operation_errors import CannotPrune
from celery_dlx_retry.operations.session import BrokerSession, operation

if TYPE_CHECKING:
    from collections.abc import Mapping

    from celery_dlx_retry.broker.management import Management
    from celery_dlx_retry.topology.names import Lane

#: How long RabbitMQ takes until its counts are fresh: a prune lasts at least this long.
COUNT_SECONDS = lanes_on_broker.COUNT_SECONDS
_CANCELLED = "the prune was cancelled"


@dataclass(frozen=True, slots=True, kw_only=True)
class PrunePlan:
    """The lanes that a prune would delete."""

    empty: tuple[Lane, ...]
    #: Why it would keep others -> how many.
    reasons: Mapping[str, int]

    @property
    def kept(self) -> int:
        """Return how many lanes it would keep."""
        return sum(self.reasons.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class PrunedLane:
    """An empty lane. ``reason`` says why it was kept; it is empty if the lane was deleted."""

    lane: str
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneResult:
    """What a prune did with each empty lane."""

    lanes: tuple[PrunedLane, ...]
    is_cancelled: bool = False

    @property
    def deleted(self) -> tuple[str, ...]:
        """The lanes that were deleted."""
        return tuple(it.lane for it in self.lanes if not it.reason)


@operation
def plan_prune(session: BrokerSession, *, everything: bool = False) -> PrunePlan:
    """Return the empty lanes; with ``everything`` also those that the app's tasks announce.

    Raise CannotPrune if lanes cannot be deleted safely: without the HTTP API, or if workers may not make them again.
    """
    management = _management(session)
    announced = set() if everything else {queue.name for queue in session.plan().queues}
    facts = management.queues()
    empty, reasons = [], Counter[str]()
    for lane in session.lanes():
        messages = facts.get(lane.name, {}).get("messages")
        if lane.is_rung or not lane.stays:
            continue  # messages of higher rungs pass the exchange of a rung; a lane that expires needs no prune
        if lane.name in announced:
            reasons["a task announces it (--all)"] += 1
        elif messages == 0:
            empty.append(lane)
        else:
            reasons["RabbitMQ has not counted it yet" if messages is None else "something waits in it"] += 1
    return PrunePlan(empty=tuple(empty), reasons=reasons)


@operation
def prune(session: BrokerSession, plan: PrunePlan, *, monitor: Monitor = NO_MONITOR) -> PruneResult:
    """Delete the lanes of the plan that are still empty and unused.

    It waits at least COUNT_SECONDS for RabbitMQ's counts. A prune that is cancelled meanwhile deletes no lane.
    """
    management = _management(session)
    lanes: list[PrunedLane] = []
    total = len(plan.empty)

    def pause(seconds: float) -> None:
        if not monitor.wait(seconds):
            raise _Cancelled

    try:
        for lane, reason in lanes_on_broker.prune(
            session.connection, session.names, plan.empty, management=management, pause=pause
        ):
            lanes.append(PrunedLane(lane=lane.name, reason=reason))
            monitor.progress(len(lanes), total)
    except _Cancelled:
        known = {it.lane for it in lanes}
        lanes += [PrunedLane(lane=it.name, reason=_CANCELLED) for it in plan.empty if it.name not in known]
        return PruneResult(lanes=tuple(lanes), is_cancelled=True)
    finally:
        deleted = sum(1 for it in lanes if not it.reason)
        kept, prefix = plan.kept + total - deleted, session.names.prefix
        monitor.audit("prune", by=session.operator, prefix=prefix, deleted=deleted, kept=kept)
    return PruneResult(lanes=tuple(lanes))


class _Cancelled(Exception):
    """The caller cancelled the prune while it waited."""


def _management(session: BrokerSession) -> Management:
    if not session.context.settings.declare:
        raise CannotPrune(
            problem="dlx_declare is False: the workers could not make a lane again. Prune with an app that may declare."
        )
    if session.management is None:
        raise CannotPrune(
            problem="prune needs the HTTP API, because AMQP does not show every message of a lane. "
            f"{session.no_management}"
        )
    return session.management
