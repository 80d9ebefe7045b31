"""Tasks that wait in lanes: which, for which work queue, until when; and one of them now, or never."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from heapq import nsmallest
from itertools import islice
from math import inf
from typing import TYPE_CHECKING

from celery_dlx_retry.broker.peek import peek
from celery_dlx_retry.errors import Unpublishable, Unroutable
from celery_dlx_retry.wire.header_numbers import LAST_MS, ms_since_1970, retries_of
from celery_dlx_retry.wire.headers import history_of, parked_at_ms_of

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from kombu.connection import Connection

    from celery_dlx_retry.broker.peek import PeekedMessage
    from celery_dlx_retry.topology.names import Lane


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingTask:
    """A task in a lane or on a rung. ``due_ms`` is when it comes back, in ms since 1970; None if nothing tells.

    ``parked``: its breaker did not let it run, and is asked again when it is due.
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
) -> Iterator[WaitingTask]:
    """Who waits in a lane, the next one first; at most ``limit`` of those that are wanted."""
    # The first ones of a lane are enough, and nothing else is held up. Not with a filter, nor on a rung, where one that
    # came later may be due before.
    first = limit if wanted is None and not lane.is_rung else None
    with peek(connection, lane.name, kind=lane.kind, limit=first) as messages:
        tasks = (waiting_task(seen, lane) for seen in messages)
        found = (task for task in tasks if wanted is None or wanted(task))
        if not lane.is_rung:
            yield from islice(found, limit)
        elif limit is None:
            yield from sorted(found, key=due)
        else:
            yield from nsmallest(limit, found, key=due)


def due(task: WaitingTask) -> float:
    """To sort by: what nobody knows comes last."""
    return inf if task.due_ms is None else task.due_ms


def take(
    connection: Connection, lane: Lane, task_ids: set[str], *, hand_over: Callable[[PeekedMessage, WaitingTask], None]
) -> Generator[tuple[WaitingTask, Unroutable | Unpublishable | None], None, None]:
    """Take the tasks with these ids out of a lane, or say why not; the others keep their places and their time.

    ``hand_over`` returns when the broker has the message in its new place. Published, confirmed, acknowledged: whoever
    stops in between has duplicated one at most. Ids that were found are taken off ``task_ids``: a task that runs and
    fails at once is back in its lane before we have left it, and has had its turn.
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
                yield task, problem  # it keeps waiting, and the others have their turn
                continue
            seen.acknowledge()
            yield task, None


def waiting_task(seen: PeekedMessage, lane: Lane) -> WaitingTask:
    """Read a waiting task from its headers. In a shared lane and on a rung the routing key is the work queue."""
    headers = seen.message.headers
    history = history_of(headers)
    failed_at_ms = history[-1].at_ms if history else 0
    parked_at_ms = parked_at_ms_of(headers)
    # A task that was parked, and has failed since, waits for its retry.
    parked = parked_at_ms > failed_at_ms
    at_ms = parked_at_ms if parked else failed_at_ms
    since_ms = at_ms if 0 < at_ms <= LAST_MS - lane.delay_ms else None
    # The worker wrote the time just before it published: what is told is early by that, and the return never is.
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
    """As Celery writes it into a header; None if it is something else."""
    try:
        at = datetime.fromisoformat(str(eta))
    except ValueError:
        return None
    return None if at.tzinfo is None else ms_since_1970(at)
