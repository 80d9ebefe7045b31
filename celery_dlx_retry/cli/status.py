"""``celery dlx status`` and ``waiting``: what runs, waits or is dead, and when the next task comes back."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from celery_dlx_retry.cli.context import (
    COUNT,
    management_option,
    note,
    of_queues,
    print_audit,
    queue_name,
    report_missing,
    session_options,
    text,
)
from celery_dlx_retry.cli.errors import changes_something
from celery_dlx_retry.cli.output import (
    confirm,
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
from celery_dlx_retry.operations.status import Status, read_status
from celery_dlx_retry.operations.waiting import MovedTasks, cancel_waiting, count_waiting, run_waiting
from celery_dlx_retry.operations.waiting import list_waiting as read_waiting
from celery_dlx_retry.sentences import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from celery_dlx_retry.broker.queue_status import QueueState
    from celery_dlx_retry.broker.waiting import WaitingTask
    from celery_dlx_retry.cli.context import OpenSession


_COLUMNS = ("role", "queue", "ready", "unacked", "consumers", "in/s", "out/s", "oldest", "next")
_NAMES = ("queue",)

_all_option = click.option("--all", "everything", is_flag=True, help="Also lanes in which nothing waits.")

_PARKED = "parked by its breaker, which may park it again"


@click.command()
@of_queues
@_all_option
@json_option
def status(ctx: click.Context, open_session: OpenSession, *, everything: bool, as_json: bool) -> None:
    """Show work queues, lanes, dead letters and orphans. The messages stay in their queues."""
    with open_session() as session:
        found = read_status(session)
    shown = found.queues if everything else found.busy
    if as_json:
        for state in shown:
            json_line(asdict(state))
    else:
        table(_COLUMNS, _rows(shown), whole=_NAMES)
        echo(_summary(found))
    if found.read_lanes:
        note(f"another command reads {', '.join(found.read_lanes)}. Tasks that it holds are not counted.")
    if found.no_management:
        unknown = "" if session.named else ", nor queues that only a worker's -Q names: name them with -Q"
        note(f"unacked messages and rates are not known{unknown}. {found.no_management}")
    if report_missing(work_queue=found.missing):
        ctx.exit(1)


def _rows(shown: Iterable[QueueState]) -> list[tuple[object, ...]]:
    return [
        (
            state.role,
            state.queue,
            state.ready if state.exists else "missing",
            state.unacked,
            state.consumers,
            _rate(state.in_per_second),
            _rate(state.out_per_second),
            state.oldest_ms and time_of(state.oldest_ms),
            state.next_ms and time_of(state.next_ms),
        )
        for state in shown
    ]


def _summary(found: Status) -> str:
    text = (
        f"{found.ready('work')} to work, {found.ready('wait')} waiting in {counted(len(found.filled_lanes), 'lane')}, "
        f"{found.ready('dead')} dead, {counted(found.ready('orphans'), 'orphan')}"
    )
    if found.next_ms is None:
        return text
    known = "" if found.is_next_certain else "known "
    seconds_left = max(0, found.next_ms - found.read_at_ms) / 1000
    return f"{text}; next {known}wake-up {time_of(found.next_ms)} UTC, in {seconds_left:.0f} s"


def _rate(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


@click.group(invoke_without_command=True)
@click.pass_context
def waiting(ctx: click.Context) -> None:
    """Tasks that wait in lanes; without a command, list them."""
    if ctx.invoked_subcommand is None:
        with list_waiting.make_context("list", [], parent=ctx) as alone:
            list_waiting.invoke(alone)


@waiting.command("list")
@click.option("--task", type=text, metavar="PATTERN", help="Only tasks with this name; * and ? match.")
@click.option("--queue", "-q", type=queue_name, metavar="PATTERN", help="Only for this work queue; * and ? match.")
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
        table(
            ("due", "task", "id", "queue", "retry", "waits", "last error"),
            map(_waiting_row, found.tasks),
            whole=("id",),
        )
        echo(f"{found.total} waiting, {len(found.tasks)} shown")
    _print_problems(found.problems)
    is_missing = found.is_queue_missing and report_missing(work_queue=[queue or ""])
    if is_missing or found.problems:
        ctx.exit(1)


@waiting.command()
@click.argument("task_ids", nargs=-1, required=True, type=text)
@session_options(management_option)
@json_option
def run(ctx: click.Context, open_session: OpenSession, *, task_ids: tuple[str, ...], as_json: bool) -> None:
    """Put waiting tasks on their work queues now. The others keep their places and their time."""
    with open_session() as session:
        changes_something()
        result = run_waiting(session, task_ids, monitor=Monitor(notice=_printer("runs", as_json=as_json)))
    _end(ctx, result)


@waiting.command()
@click.argument("task_ids", nargs=-1, required=True, type=text)
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


def _waiting_row(task: WaitingTask) -> tuple[object, ...]:
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
