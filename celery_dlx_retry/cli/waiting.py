"""``celery dlx waiting …``: the tasks that wait in lanes."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from celery_dlx_retry.cli.context import (
    COUNT,
    QUEUE_NAME,
    TEXT,
    management_option,
    print_audit,
    report_missing,
    session_options,
)
from celery_dlx_retry.cli.errors import changes_something
from celery_dlx_retry.cli.output import (
    confirm,
    counted,
    echo,
    json_line,
    json_option,
    monitored,
    seconds,
    table,
    time_of,
    yes_option,
)
from celery_dlx_retry.operations.monitor import Monitor, Notice, WaitingTaskMoved
from celery_dlx_retry.operations.waiting import MovedTasks, cancel_waiting, count_waiting, run_waiting
from celery_dlx_retry.operations.waiting import list_waiting as read_waiting

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from celery_dlx_retry.broker.waiting import WaitingTask
    from celery_dlx_retry.cli.context import OpenSession

_PARKED = "parked by its breaker, which may park it again"


@click.group(invoke_without_command=True)
@click.pass_context
def waiting(ctx: click.Context) -> None:
    """Tasks that wait in lanes; without a command, list them."""
    if ctx.invoked_subcommand is None:
        with list_waiting.make_context("list", [], parent=ctx) as alone:
            list_waiting.invoke(alone)


@waiting.command("list")
@click.option("--task", type=TEXT, metavar="PATTERN", help="Only tasks with this name; * and ? match.")
@click.option("--queue", "-q", type=QUEUE_NAME, metavar="PATTERN", help="Only for this work queue; * and ? match.")
@click.option("--limit", type=COUNT, default=100, show_default=True, help="Show at most this many.")
@session_options(management_option)
@json_option
def list_waiting(  # noqa: PLR0913 - one per option
    ctx: click.Context, open_session: OpenSession, *, task: str | None, queue: str | None, limit: int, as_json: bool
) -> None:
    """Show which tasks wait, for which work queue, until when. The next one comes first; they keep their time."""
    with open_session() as session, monitored("Reading lanes") as monitor:
        found = read_waiting(session, task=task or "*", queue=queue or "*", limit=limit, monitor=monitor)
    if as_json:
        for each in found.tasks:
            json_line(asdict(each))
    else:
        table(("due", "task", "id", "queue", "retry", "waits", "last error"), map(_row, found.tasks), whole=("id",))
        echo(f"{found.total} waiting, {len(found.tasks)} shown")
    _print_problems(found.problems)
    is_missing = found.is_queue_missing and report_missing(work_queue=[queue or ""])
    if is_missing or found.problems:
        ctx.exit(1)


@waiting.command()
@click.argument("task_ids", nargs=-1, required=True, type=TEXT)
@session_options(management_option)
@json_option
def run(ctx: click.Context, open_session: OpenSession, *, task_ids: tuple[str, ...], as_json: bool) -> None:
    """Put waiting tasks on their work queues now. The others keep their places and their time."""
    with open_session() as session:
        changes_something()
        result = run_waiting(session, task_ids, monitor=Monitor(notice=_printer("runs", as_json=as_json)))
    _end(ctx, result)


@waiting.command()
@click.argument("task_ids", nargs=-1, required=True, type=TEXT)
@session_options(management_option)
@yes_option
@json_option
def cancel(
    ctx: click.Context, open_session: OpenSession, *, task_ids: tuple[str, ...], yes: bool, as_json: bool
) -> None:
    """Make dead letters of waiting tasks. Their reason is `requested`; nothing is lost, and a replay undoes it."""
    with open_session() as session:
        if not yes and (found := count_waiting(session, task_ids)):
            confirm(f"Cancel {counted(found, 'waiting task')}?")
        changes_something()
        result = cancel_waiting(session, task_ids, monitor=Monitor(notice=_printer("cancelled", as_json=as_json)))
    _end(ctx, result)


def _row(task: WaitingTask) -> tuple[object, ...]:
    at = task.due_ms and time_of(task.due_ms)
    why = ": ".join(filter(None, (_PARKED if task.parked else "", task.error)))
    return at, task.task, task.task_id, task.queue, task.retry, f"{seconds(task.delay_ms)} s", why


def _printer(done: str, *, as_json: bool) -> Callable[[Notice], None]:
    """Return a function that prints what became of one task."""

    def show(notice: Notice) -> None:
        if not isinstance(notice, WaitingTaskMoved):
            print_audit(notice)
            return
        task, problem = notice.task, notice.problem
        if as_json:
            json_line({**asdict(task), "result": "kept" if problem else done, "problem": problem})
        else:
            echo(f"{task.task_id} {task.task} {f'keeps waiting: {problem}' if problem else done}")

    return show


def _end(ctx: click.Context, result: MovedTasks) -> None:
    """Print which tasks were not found; exit with code 1 unless all were moved."""
    if result.missing:
        _print_problems(result.problems)
        report_missing(task_id=result.missing)
    if not result.is_complete:
        ctx.exit(1)


def _print_problems(problems: Iterable[str]) -> None:
    for problem in problems:
        echo(problem, err=True)
