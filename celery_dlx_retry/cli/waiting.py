"""``celery dlx waiting …``: the tasks that wait in lanes."""

from __future__ import annotations

import time
from contextlib import closing, suppress
from dataclasses import asdict, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

import click

from celery_dlx_retry.broker.peek import counts
from celery_dlx_retry.broker.waiting import due, take
from celery_dlx_retry.broker.waiting import waiting as who_waits
from celery_dlx_retry.cli.audit import audit, who
from celery_dlx_retry.cli.context import management_option, not_there, targeting
from celery_dlx_retry.cli.errors import changes_something
from celery_dlx_retry.cli.output import (
    confirm,
    counted,
    echo,
    json_line,
    json_option,
    progress,
    seconds,
    table,
    time_of,
    yes_option,
)
from celery_dlx_retry.cli.parameters import COUNT, QUEUE_NAME, TEXT
from celery_dlx_retry.errors import Forbidden, InvalidSetting, QueueBusy, Unroutable
from celery_dlx_retry.policy.reasons import Reason
from celery_dlx_retry.topology.names import WorkQueue
from celery_dlx_retry.wire.dead_record import DeadRecord

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_dlx_retry.broker.peek import Peeked
    from celery_dlx_retry.broker.waiting import WaitingTask
    from celery_dlx_retry.cli.context import Target
    from celery_dlx_retry.errors import DLXError
    from celery_dlx_retry.topology.names import Lane

_PARKED = "parked by its breaker, which may park it again"


@click.group(invoke_without_command=True)
@click.pass_context
def waiting(ctx: click.Context) -> None:
    """Tasks that wait in lanes; without a command, list them."""
    if ctx.invoked_subcommand is None:
        with list_waiting.make_context("list", [], parent=ctx) as alone:
            list_waiting.invoke(alone)


@waiting.command("list")
@click.option("--task", type=TEXT, metavar="PATTERN", help="Tasks of this name; * and ? match.")
@click.option("--queue", "-q", type=QUEUE_NAME, metavar="PATTERN", help="For this work queue; * and ? match.")
@click.option("--limit", type=COUNT, default=100, show_default=True, help="No more than this many.")
@management_option
@json_option
@click.pass_context
def list_waiting(  # noqa: PLR0913 - one per option
    ctx: click.Context,
    *,
    task: str | None,
    queue: str | None,
    limit: int,
    management_url: str | None,
    as_json: bool,
) -> None:
    """Show who waits, for which work queue, until when. The next one comes first; they keep their time."""
    found: list[WaitingTask] = []
    with targeting(ctx, None, management_url) as target:
        lanes, total, problems = _filled(target)
        with progress("Looking into lanes", total) as step:

            def wanted(it: WaitingTask) -> bool:
                step()
                return fnmatchcase(it.task, task or "*") and fnmatchcase(it.queue, queue or "*")

            for lane in lanes:
                try:
                    found += who_waits(target.connection, lane, limit=limit, wanted=wanted if task or queue else None)
                except (QueueBusy, Forbidden) as problem:  # noqa: PERF203 - the others can be looked into
                    problems.append(str(problem))
        is_unknown = bool(queue) and not found and _is_unknown(target, queue or "")
    found.sort(key=due)
    shown = found[:limit]
    if as_json:
        for each in shown:
            json_line(asdict(each))
    else:
        table(("due", "task", "id", "queue", "retry", "waits", "last error"), map(_row, shown), whole=("id",))
        echo(f"{total} waiting, {len(shown)} shown")
    _tell(problems)
    if (is_unknown and not_there([queue or ""])) or problems:
        ctx.exit(1)


@waiting.command()
@click.argument("task_ids", nargs=-1, required=True, type=TEXT)
@management_option
@json_option
@click.pass_context
def run(ctx: click.Context, task_ids: tuple[str, ...], management_url: str | None, *, as_json: bool) -> None:
    """Put waiting tasks on their work queues now. The others keep their places and their time."""
    with targeting(ctx, None, management_url) as target:
        publisher = target.context.publisher

        def to_work_queue(seen: Peeked, task: WaitingTask) -> None:
            # The way that it takes when it is due: the sender chose the routing key in a shared lane or on a rung, and
            # this exchange leads to no queues but work queues.
            lane = target.names.lane_of(task.lane)
            back = replace(target.names, kind=lane.kind).return_exchange() if lane else ""
            if not (lane and task.queue and counts(target.connection, [task.queue])):
                raise Unroutable(exchange=back, routing_key=task.queue)
            with publisher.producer() as producer:
                # Without its eta, before which a worker would send it on to wait.
                message = seen.message.with_headers({**seen.message.headers, "eta": None})
                producer.publish_message(message, exchange=back, routing_key=task.queue)

        moved: list[str] = []
        try:
            missing = _take(target, task_ids, moved, to_work_queue, done="runs", as_json=as_json)
        finally:
            audit("waiting run", asked=len(task_ids), moved=len(moved))
    _complain(ctx, task_ids, moved, missing)


@waiting.command()
@click.argument("task_ids", nargs=-1, required=True, type=TEXT)
@management_option
@yes_option
@json_option
@click.pass_context
def cancel(
    ctx: click.Context, task_ids: tuple[str, ...], management_url: str | None, *, yes: bool, as_json: bool
) -> None:
    """Make dead letters of waiting tasks. Their reason is `requested`; nothing is lost, and a replay undoes it."""
    with targeting(ctx, None, management_url) as target:
        queues = target.app.amqp.queues
        if not yes and (found := _found(target, task_ids)):
            confirm(f"Cancel {counted(found, 'waiting task')}?")

        def to_dead_letters(seen: Peeked, task: WaitingTask) -> None:
            alias = queues[task.queue].alias if dict.__contains__(queues, task.queue) else None
            try:
                letters = target.names.dead_letters(alias or task.queue)
            except (InvalidSetting, UnicodeError) as exc:  # no work queue can have such a name
                raise Unroutable(exchange=target.names.dead(), routing_key=task.queue) from exc
            if not counts(target.connection, [letters]):
                # A broadcast queue of another process: under which name its dead letters are, nothing tells.
                raise Unroutable(exchange=target.names.dead(), routing_key=task.queue)
            queue = WorkQueue(name=task.queue, dead_letter_key=alias or task.queue)
            target.context.publish_dead(seen.message, queue, _record(task, queue))

        moved: list[str] = []
        try:
            missing = _take(target, task_ids, moved, to_dead_letters, done="cancelled", as_json=as_json)
        finally:
            audit("waiting cancel", asked=len(task_ids), moved=len(moved))
    _complain(ctx, task_ids, moved, missing)


def _is_unknown(target: Target, pattern: str) -> bool:
    """Whether it names a work queue that there is not; a pattern that matches none may have matched yesterday."""
    is_name = not set(pattern) & set("*?[")
    return is_name and not counts(target.connection, [pattern])


def _row(task: WaitingTask) -> tuple[object, ...]:
    at = task.due_ms and time_of(task.due_ms)
    why = ": ".join(filter(None, (_PARKED if task.parked else "", task.error)))
    return at, task.task, task.task_id, task.queue, task.retry, f"{seconds(task.delay_ms)} s", why


def _filled(target: Target) -> tuple[list[Lane], int, list[str]]:
    """Lanes in which something waits, how many in all, and those of which somebody else may hold a part."""
    lanes = target.lanes()
    depths = counts(target.connection, [lane.name for lane in lanes])
    # A quorum lane that somebody looks into looks empty; we say so when we have waited for a moment.
    filled = [
        it
        for it in lanes
        if it.name in depths and (depths[it.name].ready or (depths[it.name].consumers and it.kind == "quorum"))
    ]
    held = [
        f"Somebody looks into {it.name!r}: what is held meanwhile is not seen."
        for it in lanes
        if it.name in depths and depths[it.name].consumers and it.kind == "classic"
    ]
    return filled, sum(depths[lane.name].ready for lane in filled), held


def _found(target: Target, task_ids: tuple[str, ...]) -> int:
    """How many of them wait, as far as one can look; what cannot be looked into is told when it is tried."""
    found: set[str] = set()
    for lane in _filled(target)[0]:
        with suppress(QueueBusy):
            found.update(it.task_id for it in who_waits(target.connection, lane))
    return len(found.intersection(task_ids))


def _take(  # noqa: PLR0913 - which, where to, how told
    target: Target,
    task_ids: tuple[str, ...],
    moved: list[str],
    producer_for: Callable[[Peeked, WaitingTask], None],
    *,
    done: str,
    as_json: bool,
) -> set[str]:
    """Tells of each, and adds it to ``moved`` once it is; returns those that are not there."""
    left = set(task_ids)
    changes_something()
    lanes, _, problems = _filled(target)
    for lane in lanes:
        if not left:
            break
        try:
            with closing(take(target.connection, lane, left, hand_over=producer_for)) as taken:
                for task, problem in taken:
                    if not problem:
                        moved.append(task.task_id)
                    _say(task, problem, done=done, as_json=as_json)
        except QueueBusy as problem:
            problems.append(str(problem))
    if left:
        _tell(problems)
    return left


def _say(task: WaitingTask, problem: DLXError | None, *, done: str, as_json: bool) -> None:
    if as_json:
        json_line({**asdict(task), "result": "kept" if problem else done, "problem": str(problem or "")})
    else:
        result = f"keeps waiting: {problem}" if problem else done
        echo(f"{task.task_id} {task.task} {result}")


def _tell(problems: list[str]) -> None:
    for problem in problems:
        echo(problem, err=True)


def _complain(ctx: click.Context, task_ids: tuple[str, ...], moved: list[str], missing: set[str]) -> None:
    """Name what is not there; what was there and not moved has said why."""
    if missing:
        echo(f"Not found: {', '.join(f'task id {it}' for it in sorted(missing))}.", err=True)
    if set(task_ids).difference(moved):
        ctx.exit(1)


def _record(task: WaitingTask, queue: WorkQueue) -> DeadRecord:
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
        error=f"while it waited, by {who()}",
    )
