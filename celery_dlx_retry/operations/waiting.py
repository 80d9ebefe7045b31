"""Tasks that wait in lanes: list them, run some now, or make dead letters of them."""

from __future__ import annotations

import time
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from celery_dlx_retry.broker.counts import counts
from celery_dlx_retry.broker.waiting import WaitingTask, due, take, waiting
from celery_dlx_retry.deadletters.event import dead_lettered
from celery_dlx_retry.errors import Forbidden, InvalidSetting, QueueBusy, Unroutable
from celery_dlx_retry.events import emit
from celery_dlx_retry.operations.connect import broker_errors, broker_iterator
from celery_dlx_retry.operations.monitor import NO_MONITOR, Monitor, WaitingTaskMoved
from celery_dlx_retry.operations.session import BrokerSession, operation
from celery_dlx_retry.policy.reasons import Reason
from celery_dlx_retry.topology.names import Lane, WorkQueue
from celery_dlx_retry.wire.dead_record import DeadRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from celery_dlx_retry.broker.peek import PeekedMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingList:
    """Tasks that wait, the next one first."""

    tasks: tuple[WaitingTask, ...]
    #: How many tasks wait in all lanes.
    total: int
    #: One sentence for each lane that could not be read as a whole.
    problems: tuple[str, ...] = ()
    #: Whether the caller named a work queue that does not exist.
    is_queue_missing: bool = False
    #: Whether the caller cancelled the operation: tasks may be missing then.
    is_cancelled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MovedTasks:
    """What became of the tasks that were to be moved."""

    moved: tuple[str, ...]
    #: Ids of tasks that keep waiting, with the reason.
    kept: tuple[tuple[str, str], ...] = ()
    #: Ids that no lane contains.
    missing: tuple[str, ...] = ()
    #: One sentence for each lane that could not be read as a whole: a missing task may be in there.
    problems: tuple[str, ...] = ()
    #: Ids that were not looked for, because the caller cancelled the operation.
    skipped: tuple[str, ...] = ()

    @property
    def is_complete(self) -> bool:
        """Whether all tasks were moved."""
        return not (self.kept or self.missing or self.skipped)


@operation
def list_waiting(
    session: BrokerSession,
    *,
    task: str = "*",
    queue: str = "*",
    limit: int = 100,
    monitor: Monitor = NO_MONITOR,
) -> WaitingList:
    """Return the tasks that come back next, at most ``limit``. They keep their places and their time.

    ``task`` and ``queue`` are patterns for the names of tasks and of their work queues.
    """
    lanes, total, problems = _filled_lanes(session)
    found: list[WaitingTask] = []
    read = 0

    def matches(it: WaitingTask) -> bool:
        nonlocal read
        if monitor.is_cancelled:
            raise _StopReading
        read += 1
        monitor.progress(read, total)
        return fnmatchcase(it.task, task) and fnmatchcase(it.queue, queue)

    is_filtered = (task, queue) != ("*", "*")
    for lane in lanes:
        if monitor.is_cancelled:
            break
        try:
            wanted = matches if is_filtered else None
            with closing(waiting(session.connection, lane, limit=limit, wanted=wanted)) as tasks:
                found += tasks
        except (QueueBusy, Forbidden) as problem:  # the other lanes can be read
            problems.append(str(problem))
        except _StopReading:
            break
    found.sort(key=due)
    return WaitingList(
        tasks=tuple(found[:limit]),
        total=total,
        problems=tuple(problems),
        # A pattern without a match is not an error.
        is_queue_missing=not (found or monitor.is_cancelled or set(queue) & set("*?["))
        and not counts(session.connection, [queue]),
        is_cancelled=monitor.is_cancelled,
    )


@operation
def count_waiting(session: BrokerSession, task_ids: Iterable[str]) -> int:
    """Return how many of these tasks wait in lanes that can be read."""
    found: set[str] = set()
    for lane in _filled_lanes(session)[0]:
        with suppress(QueueBusy), closing(waiting(session.connection, lane)) as tasks:
            found.update(it.task_id for it in tasks)
    return len(found.intersection(task_ids))


def run_waiting(session: BrokerSession, task_ids: Iterable[str], *, monitor: Monitor = NO_MONITOR) -> MovedTasks:
    """Put waiting tasks on their work queues now. The others keep their places and their time."""
    publisher = session.context.publisher

    def to_work_queue(seen: PeekedMessage, task: WaitingTask) -> None:
        # The route that the message takes when it is due. In a shared lane and on a rung the sender chose the routing
        # key, and this exchange leads to work queues only.
        lane = session.names.lane_of(task.lane)
        exchange = replace(session.names, kind=lane.kind).return_exchange() if lane else ""
        if not (lane and task.queue and counts(session.connection, [task.queue])):
            raise Unroutable(exchange=exchange, routing_key=task.queue)
        with publisher.producer() as producer:
            # Without its eta: a worker would let it wait until then.
            message = seen.message.with_headers({**seen.message.headers, "eta": None})
            producer.publish_message(message, exchange=exchange, routing_key=task.queue)

    return _move(session, "waiting run", task_ids, to_work_queue, monitor=monitor)


def cancel_waiting(session: BrokerSession, task_ids: Iterable[str], *, monitor: Monitor = NO_MONITOR) -> MovedTasks:
    """Make dead letters of waiting tasks, with the reason ``requested``. A replay undoes it."""
    queues = session.app.amqp.queues

    def to_dead_letters(seen: PeekedMessage, task: WaitingTask) -> None:
        alias = queues[task.queue].alias if dict.__contains__(queues, task.queue) else None
        try:
            letters = session.names.dead_letters(alias or task.queue)
        except (InvalidSetting, UnicodeError) as exc:  # no work queue can have such a name
            raise Unroutable(exchange=session.names.dead(), routing_key=task.queue) from exc
        if not counts(session.connection, [letters]):
            # For a broadcast queue of another process, the name of the dead-letter queue is not known.
            raise Unroutable(exchange=session.names.dead(), routing_key=task.queue)
        queue = WorkQueue(name=task.queue, dead_letter_key=alias or task.queue)
        record = _record(task, queue, by=session.operator)
        session.context.publish_dead(seen.message, queue, record)
        emit(dead_lettered(record))

    return _move(session, "waiting cancel", task_ids, to_dead_letters, monitor=monitor)


def _move(
    session: BrokerSession,
    action: str,
    task_ids: Iterable[str],
    hand_over: Callable[[PeekedMessage, WaitingTask], None],
    *,
    monitor: Monitor,
) -> MovedTasks:
    """Take the tasks out of their lanes, one after the other, and write the audit line, also after an error."""
    asked = list(task_ids)
    left = set(asked)
    moved: list[str] = []
    kept: list[tuple[str, str]] = []
    try:
        with broker_errors(session.app):
            lanes, _, problems = _filled_lanes(session)
        for lane in lanes:
            if monitor.is_cancelled or not left:
                break
            try:
                tasks = take(session.connection, lane, left, hand_over=hand_over)
                with broker_iterator(session.app, tasks) as taken:
                    for task, problem in taken:
                        if problem:
                            kept.append((task.task_id, str(problem)))
                        else:
                            moved.append(task.task_id)
                        monitor.notice(WaitingTaskMoved(task=task, problem=str(problem or "")))
                        monitor.progress(len(moved) + len(kept), len(asked))
                        if monitor.is_cancelled:
                            break
            except QueueBusy as problem:
                problems.append(str(problem))
    finally:
        monitor.audit(action, by=session.operator, asked=len(asked), moved=len(moved))
    rest, is_cancelled = tuple(sorted(left)), monitor.is_cancelled
    return MovedTasks(
        moved=tuple(moved),
        kept=tuple(kept),
        missing=() if is_cancelled else rest,
        problems=tuple(problems),
        skipped=rest if is_cancelled else (),
    )


class _StopReading(Exception):
    """The caller wants no more."""


def _filled_lanes(session: BrokerSession) -> tuple[list[Lane], int, list[str]]:
    """Return the lanes in which something waits, the number of tasks, and a sentence for each lane that is held."""
    lanes = session.lanes()
    depths = counts(session.connection, [lane.name for lane in lanes])
    # A quorum lane looks empty while a command reads it; reading it waits a moment and then raises QueueBusy.
    filled = [
        it
        for it in lanes
        if it.name in depths and (depths[it.name].ready or (depths[it.name].consumers and it.kind == "quorum"))
    ]
    held = [
        f"Another command reads {it.name!r}: the tasks that it holds are not seen."
        for it in lanes
        if it.name in depths and depths[it.name].consumers and it.kind == "classic"
    ]
    return filled, sum(depths[lane.name].ready for lane in filled), held


def _record(task: WaitingTask, queue: WorkQueue, *, by: str) -> DeadRecord:
    return DeadRecord(
        reason=Reason.REQUESTED,
        task=task.task,
        task_id=task.task_id,
        queue=queue.name,
        dead_letter_key=queue.dead_letter_key,
        worker="",
        attempts=task.retry,
        died_at_ms=time.time_ns() // 1_000_000,
        error_type="Cancelled",
        error=f"while it waited, by {by}",
    )
