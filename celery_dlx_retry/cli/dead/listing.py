"""``celery dlx dead list`` and ``dead groups``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, get_args

import click

from celery_dlx_retry.cli.context import app_of, report_missing
from celery_dlx_retry.cli.dead.options import selects
from celery_dlx_retry.cli.dead.reporting import Reporter
from celery_dlx_retry.cli.output import counted, echo, json_line, json_option, seconds, table, time_of
from celery_dlx_retry.cli.parameters import COUNT
from celery_dlx_retry.deadletters.letter import DeadMessage, facts_of
from celery_dlx_retry.operations.select_letters import LetterQuery, SortKey, group_letters, list_letters

if TYPE_CHECKING:
    from collections.abc import Iterable

    from celery_dlx_retry.deadletters.groups import Group

_IDS = ("group", "sample")
_COLUMNS = ("died", "reason", "task", "id", "error", "attempts", "waited", "queue", "worker", "group")


@click.command("list")
@selects
@click.option(
    "--sort", type=click.Choice(get_args(SortKey)), default="died", show_default=True, help="Sort by this column."
)
@click.option("--reverse", is_flag=True, help="Sort in descending order.")
@click.option("--limit", type=COUNT, default=100, show_default=True, help="Show at most this many.")
@json_option
def list_dead(  # noqa: PLR0913 - one per option
    ctx: click.Context, query: LetterQuery, *, sort: SortKey, limit: int, reverse: bool, as_json: bool
) -> None:
    """Show dead letters; they stay where they are."""
    reporter = Reporter()
    with app_of(ctx) as app:
        with reporter.bar("reading"):
            found = list_letters(app, query, sort=sort, reverse=reverse, limit=limit, monitor=reporter.monitor)
        if sys.stdout.isatty() or as_json:
            for letter in found.letters:
                json_line(facts_of(letter)) if as_json else _print_lines(letter)
        else:
            table(_COLUMNS, map(_row, found.letters))
    if not as_json:
        more = f", {limit} shown" if found.total > limit else ""
        echo(f"{counted(found.total, 'dead letter')}{more}")
    if report_missing(group=found.absent_groups):
        ctx.exit(1)


@click.command("groups")
@selects
@json_option
def group_dead(ctx: click.Context, query: LetterQuery, *, as_json: bool) -> None:
    """Count dead letters by what failed where. That is exception type and innermost frame of your own code."""
    reporter = Reporter()
    with app_of(ctx) as app, reporter.bar("reading"):
        found = group_letters(app, query, monitor=reporter.monitor)
    if as_json:
        for group in found.groups:
            json_line(group.facts)
    else:
        columns = ("group", "count", "error", "where", "first died", "last died", "sample")
        table(columns, _rows(found.groups), whole=_IDS)
    if report_missing(group=found.absent_groups):
        ctx.exit(1)


def _rows(groups: Iterable[Group]) -> list[tuple[object, ...]]:
    return [
        (
            group.fingerprint.group,
            group.count,
            group.fingerprint.error,
            group.fingerprint.where,
            time_of(group.first_ms),
            time_of(group.last_ms),
            group.sample_id,
        )
        for group in groups
    ]


def _print_lines(letter: DeadMessage) -> None:
    """Print three lines for a terminal, where one line would be too long."""
    died, reason, task, task_id, error, attempts, waited, queue, worker, group = (it or "-" for it in _row(letter))
    for line in (
        f"{died}  {reason!s:<12} {task} {task_id}",
        f"    {error}",
        f"    attempts {attempts}, waited {waited}, queue {queue}, worker {worker}, group {group}",
    ):
        echo(line)


def _row(letter: DeadMessage) -> tuple[object, ...]:
    record = letter.record
    waits = " ".join(f"{seconds(it.delay_ms)}s" for it in letter.history if it.delay_ms is not None)
    error = f"{record.error_type}: {record.error}".strip(": ").splitlines()
    return (
        time_of(record.died_at_ms),
        record.reason,
        record.task,
        record.task_id,
        error[0] if error else "",
        str(record.attempts),
        waits,
        record.queue,
        record.worker,
        letter.fingerprint.group,
    )
