"""``celery dlx status`` and ``celery dlx watch``: what runs, waits or is dead, and when the next task comes back."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from celery_dlx_retry.cli.context import DAY_SECONDS, Seconds, note, of_queues, report_missing
from celery_dlx_retry.cli.output import (
    counted,
    echo,
    is_terminal,
    json_line,
    json_option,
    rich_table,
    rich_text,
    table,
    time_of,
)
from celery_dlx_retry.operations.status import Status, StatusReader, read_status

if TYPE_CHECKING:
    from collections.abc import Iterable

    from celery_dlx_retry.broker.queue_status import QueueState
    from celery_dlx_retry.cli.context import OpenSession

_COLUMNS = ("role", "queue", "ready", "unacked", "consumers", "in/s", "out/s", "oldest", "next")
_NAMES = ("queue",)

_all_option = click.option("--all", "everything", is_flag=True, help="Also lanes in which nothing waits.")


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


@click.command()
@of_queues
@_all_option
@click.option(
    "--interval",
    type=Seconds(min=0.1, max=DAY_SECONDS),
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    help="Time between two updates.",
)
@json_option
def watch(_: click.Context, open_session: OpenSession, *, everything: bool, interval: float, as_json: bool) -> None:
    """Show the status again and again, until Ctrl-C. It goes on while the broker is down."""
    with ExitStack() as stack:
        live = None if as_json or not is_terminal() else _live(stack)
        try:
            while True:
                try:
                    with open_session() as session:
                        reader = StatusReader(session)
                        while True:
                            _show(reader.read(), live, everything=everything, as_json=as_json)
                            _wait(interval)
                except click.UsageError:  # noqa: PERF203 - the loop goes on after an error
                    raise
                except click.ClickException as problem:
                    if live is None:
                        echo(problem.format_message(), err=True)
                    else:
                        live.update(rich_text(problem.format_message()), refresh=True)
                    _wait(interval)
        except KeyboardInterrupt:
            return


def _show(found: Status, live: Any, *, everything: bool, as_json: bool) -> None:
    """Print one status of many, or draw it again on a terminal."""
    shown = found.queues if everything else found.busy
    if as_json:
        for state in shown:
            json_line({**asdict(state), "at_ms": found.read_at_ms})
    elif live is None:
        table(_COLUMNS, _rows(shown), whole=_NAMES)
        echo(_summary(found))
    else:
        live.update(rich_table(_COLUMNS, _rows(shown), title=_summary(found), whole=_NAMES), refresh=True)


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
    seconds = max(0, found.next_ms - found.read_at_ms) / 1000
    return f"{text}; next {known}wake-up {time_of(found.next_ms)} UTC, in {seconds:.0f} s"


def _rate(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def _live(stack: ExitStack) -> Any:
    from rich.live import Live  # noqa: PLC0415 - an extra

    return stack.enter_context(Live(auto_refresh=False))


def _wait(seconds: float) -> None:
    time.sleep(seconds)  # noqa: TID251 - the interval that the user chose
