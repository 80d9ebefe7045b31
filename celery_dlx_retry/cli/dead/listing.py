"""``celery dlx dead list`` and ``dead groups``."""

from __future__ import annotations

import heapq
import sys
from typing import TYPE_CHECKING, Any

import click

from celery_dlx_retry.cli.dead.selection import selects
from celery_dlx_retry.cli.output import counted, echo, json_line, json_option, seconds, table, time_of
from celery_dlx_retry.cli.parameters import COUNT
from celery_dlx_retry.deadletters.groups import grouped
from celery_dlx_retry.deadletters.letter import facts_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from celery_dlx_retry.cli.dead.selection import Selection
    from celery_dlx_retry.deadletters.groups import Group
    from celery_dlx_retry.deadletters.letter import DeadMessage

_IDS = ("group", "sample")
_COLUMNS = ("died", "reason", "task", "id", "error", "attempts", "waited", "queue", "worker", "group")
_SORTS: dict[str, Callable[[DeadMessage], Any]] = {
    "died": lambda letter: letter.record.died_at_ms,
    "task": lambda letter: letter.record.task,
    "error": lambda letter: (letter.record.error_type, letter.record.error),
    "reason": lambda letter: str(letter.record.reason),
    "attempts": lambda letter: letter.record.attempts,
    "queue": lambda letter: letter.record.queue,
}


@click.command("list")
@selects
@click.option("--sort", type=click.Choice(list(_SORTS)), default="died", show_default=True, help="By this.")
@click.option("--reverse", is_flag=True, help="The last first.")
@click.option("--limit", type=COUNT, default=100, show_default=True, help="No more than this many.")
@json_option
def list_dead(  # noqa: PLR0913 - one per option
    ctx: click.Context, selection: Selection, *, sort: str, limit: int, reverse: bool, as_json: bool
) -> None:
    """Show dead letters; they stay where they are."""
    counter = _Counter()
    with selection.reading() as letters:
        # No more than the limit is ever in memory, and of each only what is shown.
        choose = heapq.nlargest if reverse else heapq.nsmallest
        shown = choose(limit, counter(letters), key=_SORTS[sort])
        if sys.stdout.isatty() or as_json:
            for letter in shown:
                json_line(facts_of(letter)) if as_json else _tell(letter)
        else:
            table(_COLUMNS, map(_row, shown))
    if not as_json:
        more = f", {limit} shown" if counter.count > limit else ""
        echo(f"{counted(counter.count, 'dead letter')}{more}")
    if selection.tells_missing():
        ctx.exit(1)


@click.command("groups")
@selects
@json_option
def group_dead(ctx: click.Context, selection: Selection, *, as_json: bool) -> None:
    """Count dead letters by what failed where. That is exception type and innermost frame of your own code."""
    with selection.reading() as letters:
        groups = grouped(letters)
    if as_json:
        for group in groups:
            json_line(group.facts)
    else:
        table(("group", "count", "error", "where", "first died", "last died", "sample"), _rows(groups), whole=_IDS)
    if selection.tells_missing():
        ctx.exit(1)


def _rows(groups: list[Group]) -> list[tuple[object, ...]]:
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


class _Counter:
    """Count letters and pass on what is shown of each."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, letters: Iterable[DeadMessage]) -> Iterator[DeadMessage]:
        for letter in letters:
            self.count += 1
            yield letter.without_content()


def _tell(letter: DeadMessage) -> None:
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
