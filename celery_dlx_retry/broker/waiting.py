"""Tasks that wait in lanes: list them, and take some of them out."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from heapq import nsmallest
from itertools import islice
from math import inf
from typing import TYPE_CHECKING

from celery_dlx_retry.broker.peek import peek
from celery_dlx_retry.errors import Unpublishable, Unroutable
from celery_dlx_retry.wire.headers import LAST_MS, history_of, ms_since_1970, parked_at_ms_of, retries_of

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from kombu.connection import Connection

    from celery_dlx_retry.broker.peek import PeekedMessage
    from celery_dlx_retry.topology.names import Lane


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingTask:
    """A task in a lane or on a rung. ``due_ms`` is when it comes back, in ms since 1970; None if it is not known.

    ``parked``: its breaker did not let it run, and decides again when it is due.
    """

    task: str
    task_id: str
    queue: str
    lane: str
    delay_ms: int
    retry: int
    since_ms: int | None
    due_ms: int | None
    error: str
    parked: bool = False


def waiting(
    connection: Connection, lane: Lane, *, limit: int | None = None, wanted: Callable[[WaitingTask], bool] | None = None
) -> Generator[WaitingTask, None, None]:
    """Yield the tasks in a lane, the next one first; at most ``limit`` of those that are wanted."""
    # Read only the first messages of a lane, and hold no others. A filter needs all of them, and so does a rung, where
    # a later message may be due earlier.
    first = limit if wanted is None and not lane.is_rung else None
    with peek(connection, lane.name, kind=lane.kind, limit=first) as messages:
        tasks = (waiting_task(seen, lane) for seen in messages)
        tasks = (task for task in tasks if wanted is None or wanted(task))
        if not lane.is_rung:
            yield from islice(tasks, limit)
        elif limit is None:
            yield from sorted(tasks, key=due)
        else:
            yield from nsmallest(limit, tasks, key=due)


def due(task: WaitingTask) -> float:
    """Return the key to sort by: tasks without a known time come last."""
    return inf if task.due_ms is None else task.due_ms


def take(
    connection: Connection, lane: Lane, task_ids: set[str], *, hand_over: Callable[[PeekedMessage, WaitingTask], None]
) -> Generator[tuple[WaitingTask, Unroutable | Unpublishable | None], None, None]:
    """Take the tasks with these ids out of a lane; yield each, with the error if it stays there.

    The others keep their places and their time. ``hand_over`` returns when the broker has confirmed the message in its
    new queue. Published, confirmed, acknowledged: a crash in between duplicates one at most. Ids that were found are
    removed from ``task_ids``: a task that runs and fails at once may be back in the lane before we have left it.
    """
    with peek(connection, lane.name, kind=lane.kind) as messages:
        for seen in messages:
            task = waiting_task(seen, lane)
            if task.task_id not in task_ids:
                continue
            task_ids.remove(task.task_id)
            try:
                hand_over(seen, task)
            except (Unroutable, Unpublishable) as problem:
                yield task, problem  # it keeps waiting, and the others go on
                continue
            seen.acknowledge()
            yield task, None


def waiting_task(seen: PeekedMessage, lane: Lane) -> WaitingTask:
    """Read a waiting task from its headers. In a shared lane and on a rung the routing key is the work queue."""
    headers = seen.message.headers
    history = history_of(headers)
    failed_at_ms = history[-1].at_ms if history else 0
    parked_at_ms = parked_at_ms_of(headers)
    # A task that was parked and has failed since then waits for its retry.
    parked = parked_at_ms > failed_at_ms
    at_ms = parked_at_ms if parked else failed_at_ms
    since_ms = at_ms if 0 < at_ms <= LAST_MS - lane.delay_ms else None
    # The worker wrote the time just before it published, so this time is a little early. The task never comes early.
    due_ms = None if since_ms is None or lane.is_rung else since_ms + lane.delay_ms
    return WaitingTask(
        task=str(headers.get("task", "")),
        task_id=str(headers.get("id", "")),
        queue=lane.queue or seen.routing_key,
        lane=lane.name,
        delay_ms=lane.delay_ms,
        retry=retries_of(headers),
        since_ms=since_ms,
        # A retry has no eta; what is parked is past it.
        due_ms=due_ms if parked else _eta_ms(headers.get("eta")) or due_ms,
        error=history[-1].error if history else "",
        parked=parked,
    )


def _eta_ms(eta: object) -> int | None:
    """Read an eta as Celery writes it into a header; None if it is something else."""
    try:
        at = datetime.fromisoformat(str(eta))
    except ValueError:
        return None
    return None if at.tzinfo is None else ms_since_1970(at)
