"""The rules about what is wrong now; ``celery dlx`` shows their findings on its first line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery_dlx_retry.doctor.rule import error, info, warning
from celery_dlx_retry.sentences import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_dlx_retry.doctor.facts import Facts

#: The codes of the rules in this module, without those for information.
NOW = frozenset(
    {"broker-alarm", "node-down", "work-queue-missing", "orphans", "no-worker", "lane-overdue", "crash-loop"}
)
_GROWING = 10


@error(
    "broker-alarm",
    consequence="RabbitMQ blocks everything that publishes: no task is sent, retried or made a dead letter.",
    cure="Free memory or disk on that node, or raise its limit.",
)
def _broker_alarm(facts: Facts) -> Iterator[str]:
    for node in facts.nodes:
        for alarm in node.alarms:
            yield f"The broker node {node.name} has a {alarm} alarm."


@error(
    "node-down",
    consequence="Classic queues of this node cannot be used; quorum queues need most of their nodes.",
    cure="Start the node, or remove it from the cluster.",
)
def _node_down(facts: Facts) -> Iterator[str]:
    for node in facts.nodes:
        if not node.is_running:
            yield f"The broker node {node.name} does not run."


@error(
    "work-queue-missing",
    consequence="Tasks that are due for it become orphans, and tasks that are sent to it may be lost.",
    cure="Start a worker that consumes it, or run `celery dlx declare`; a worker also fetches the orphans.",
)
def _work_queue_missing(facts: Facts) -> Iterator[str]:
    for queue in facts.queues:
        if not queue.exists and queue.was_used:
            waiting = f", and {counted(queue.waiting, 'task')} wait for it" if queue.waiting else ""
            yield f"The work queue {queue.name!r} does not exist{waiting}."


@error(
    "orphans",
    consequence="They came back from their wait, and their work queue did not exist.",
    cure="Start a worker that consumes their work queue; it fetches them. Or: `celery dlx dead replay -q ORPHANS`.",
)
def _orphans(facts: Facts) -> Iterator[str]:
    if facts.orphans:
        yield f"{counted(facts.orphans, 'orphan')}: tasks without a work queue."


@error(
    "no-worker",
    consequence="Its tasks do not run.",
    cure="Start a worker that consumes it.",
)
def _no_worker(facts: Facts) -> Iterator[str]:
    for queue in facts.queues:
        if queue.exists and not queue.consumers and (queue.ready or queue.waiting):
            tasks = [f"{queue.ready} ready"] * bool(queue.ready) + [f"{queue.waiting} waiting"] * bool(queue.waiting)
            yield f"No worker consumes the work queue {queue.name!r}: {', '.join(tasks)}."


@error(
    "lane-overdue",
    consequence="Retries and countdowns come back late, or not at all.",
    cure="See whether the work queue is full, and whether the broker has an alarm; then `celery dlx check`.",
)
def _lane_overdue(facts: Facts) -> Iterator[str]:
    for lane, late_ms in facts.overdue_ms.items():
        yield f"The first task in the lane {lane!r} is overdue for {late_ms // 1000} s."


@warning(
    "crash-loop",
    consequence="It kills its process each time it runs, and delays the tasks beside it.",
    cure="Find out with `celery dlx dead groups --since 10m` and `dead show`; limit its memory or time.",
)
def _crash_loop(facts: Facts) -> Iterator[str]:
    for task, count in facts.crash_loops.items():
        yield f"The task {task} kills its process: {counted(count, 'dead letter')} in ten minutes."


@warning(
    "dead-letters-growing",
    consequence="What fails now fails for every task that comes.",
    cure="See `celery dlx dead groups --since 10m --trend`.",
)
def _growing(facts: Facts) -> Iterator[str]:
    for queue in facts.queues:
        if queue.dead_lately >= _GROWING:
            yield f"{queue.dead_lately} tasks of the work queue {queue.name!r} died in the last ten minutes."


@info(
    "no-consumer",
    consequence="A task that is sent there waits for a worker.",
    cure="Start a worker that consumes it, or remove it from task_queues and task_routes.",
)
def _no_consumer(facts: Facts) -> Iterator[str]:
    for queue in facts.queues:
        if not queue.exists and not queue.was_used:
            yield f"The work queue {queue.name!r} does not exist: no worker has consumed it yet."
        elif queue.exists and not (queue.consumers or queue.ready or queue.waiting):
            yield f"No worker consumes the work queue {queue.name!r}, which is empty."
