"""All broker objects that a worker with these work queues needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery_dlx_retry.topology.ladder import Ladder, rungs
from celery_dlx_retry.topology.lanes import grid
from celery_dlx_retry.topology.objects import landing, lane, shared_objects, work_queue_objects
from celery_dlx_retry.topology.specs import Topology

if TYPE_CHECKING:
    from collections.abc import Iterable

    from celery_dlx_retry.settings import Settings
    from celery_dlx_retry.topology.names import Names, WorkQueue


def topology_without_lanes(names: Names, queues: Iterable[WorkQueue], *, ladder: Ladder | None) -> Topology:
    """Return the shared objects and those around each work queue; with a ladder, also its rungs and landing queues."""
    queues = list(queues)
    parts = [shared_objects(names), *(work_queue_objects(names, queue) for queue in queues)]
    if ladder is not None:
        parts += [rungs(names, ladder), *(landing(names, queue) for queue in queues)]
    return Topology.union(parts)


def announced_lanes(names: Names, queues: Iterable[WorkQueue], delays_ms: Iterable[int]) -> Topology:
    """Return a lane for each work queue and each delay that is known before a task fails."""
    delays = sorted(delays_ms)
    return Topology.union(lane(names, queue, delay_ms) for queue in queues for delay_ms in delays)


def possible_wait_queues(
    names: Names, settings: Settings, queues: Iterable[WorkQueue], delays_ms: Iterable[int]
) -> set[str]:
    """Return the names of all wait queues that processes with these settings may have made for these work queues."""
    steps = grid(settings.grid, settings.max_delay_ms)
    delays = set(delays_ms).union(steps)
    possible = {queue.name for queue in rungs(names, Ladder.of(settings)).queues}
    for queue in queues:
        possible |= {names.lane(queue, delay_ms) for delay_ms in delays}
        possible |= {names.lane(queue, delay_ms, expires_ms=settings.lane_expires_ms) for delay_ms in steps}
        possible.add(names.landing(queue))
    return possible
