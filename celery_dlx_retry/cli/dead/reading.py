"""``celery dlx dead list``, ``groups``, ``show`` and ``export``: dead letters stay where they are."""

from __future__ import annotations

import json
import os
import sys
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any, get_args

import click

from celery_dlx_retry.cli.context import COUNT, app_of, management_option, report_missing, text
from celery_dlx_retry.cli.dead.options import Reporter, queue_option, selects
from celery_dlx_retry.cli.output import (
    echo,
    json_line,
    json_option,
    most_of,
    seconds,
    table,
    time_of,
)
from celery_dlx_retry.deadletters.filter import LetterFilter
from celery_dlx_retry.deadletters.letter import DeadMessage, details_of, facts_of
from celery_dlx_retry.operations.select_letters import (
    LetterQuery,
    SelectedLetters,
    SortKey,
    group_letters,
    list_letters,
)
from celery_dlx_retry.operations.transfer import export_letters
from celery_dlx_retry.sentences import counted
from celery_dlx_retry.values.escaping import json_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_dlx_retry.deadletters.groups import Group
    from celery_dlx_retry.wire.headers import Failure


_GROUP_COLUMNS = (
    "group", "count", "task", "queue", "reason", "error", "where", "first died", "last died", "trend", "sample",
)  # fmt: skip
_WHOLE = ("group", "count", "first died", "last died", "trend", "sample")
#: What a narrow terminal does not show, the first one first.
_DROPPED = ("sample", "first died", "where", "reason", "queue", "last died")
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
@click.option("--trend", is_flag=True, help="Also show when the letters of each group died, as a row of bars.")
@json_option
def group_dead(ctx: click.Context, query: LetterQuery, *, trend: bool, as_json: bool) -> None:
    """Count dead letters by what failed where. That is the error, and the function of your own code or the task."""
    reporter = Reporter()
    with app_of(ctx) as app, reporter.bar("reading"):
        found = group_letters(app, query, monitor=reporter.monitor)
    start_ms = query.filter.died_after_ms or min((it.first_ms for it in found.groups if it.first_ms), default=0)
    end_ms = max((it.last_ms for it in found.groups), default=0)
    trends = [group.deaths.trend(start_ms, end_ms) if trend else "" for group in found.groups]
    if as_json:
        for group, bars in zip(found.groups, trends, strict=True):
            json_line({**group.facts, **({"trend": bars} if trend else {})})
    else:
        columns = tuple(it for it in _GROUP_COLUMNS if trend or it != "trend")
        rows = [
            [value for name, value in zip(_GROUP_COLUMNS, (*_group_row(group), bars, group.sample_id), strict=True)
             if name in columns]
            for group, bars in zip(found.groups, trends, strict=True)
        ]  # fmt: skip
        table(columns, rows, whole=_WHOLE, drop=_DROPPED)
    if report_missing(group=found.absent_groups):
        ctx.exit(1)


def _group_row(group: Group) -> tuple[object, ...]:
    return (
        group.fingerprint.group,
        group.count,
        most_of(group.tasks),
        most_of(group.queues),
        most_of(group.reasons),
        group.fingerprint.error,
        group.fingerprint.where,
        time_of(group.first_ms),
        time_of(group.last_ms),
    )


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


@click.command("show")
@click.argument("task_id", type=text)
@queue_option
@management_option
@click.option("--args", "with_args", is_flag=True, help="Show its arguments, too; a pickle is never opened.")
@json_option
@click.pass_context
def show_dead(  # noqa: PLR0913 - one per option
    ctx: click.Context,
    task_id: str,
    queues: tuple[str, ...],
    management_url: str | None,
    *,
    with_args: bool,
    as_json: bool,
) -> None:
    """Show everything about a dead letter. History, traceback, headers, and with --args its arguments."""
    reporter = Reporter()
    query = LetterQuery(queues=queues, filter=LetterFilter(ids=frozenset([task_id])), management_url=management_url)
    count = 0
    with app_of(ctx) as app, SelectedLetters(app, query, monitor=reporter.monitor) as letters, reporter.bar("reading"):
        for letter in letters:
            count += 1
            details = details_of(letter, with_arguments=with_args)
            if as_json:
                json_line(details)
            else:
                for line in _lines(letter, details):
                    echo(line)
    if not count:
        echo(f"No dead letter has the task id {task_id}.", err=True)
        ctx.exit(1)


def _lines(letter: DeadMessage, details: dict[str, Any]) -> Iterator[str]:
    record, message = letter.record, letter.message
    yield f"{record.task or '(no task)'} {record.task_id}"
    links = details["links"]
    for name, value in (
        ("reason", record.reason),
        ("error", f"{record.error_type}: {record.error}".strip(": ")),
        ("died", f"{time_of(record.died_at_ms)} on {record.worker or 'an unknown worker'}"),
        ("work queue", record.queue or "not known: replay it with --to-queue"),
        ("lies in", letter.queue),
        ("attempts", f"{record.attempts}, replayed {letter.replays} times before"),
        ("group", f"{letter.fingerprint.group}, {letter.fingerprint.error} at {letter.fingerprint.where}"),
        ("links", "not known: the body is not JSON" if links is None else ", ".join(links) or "none"),
        ("body", f"{len(message.body)} bytes of {message.content_type}, {message.content_encoding}"),
        ("edited", "yes; dead edit --undo brings the original back" if details["edited"] else "no"),
    ):
        yield f"  {name:<11} {' '.join(str(value).splitlines())}"
    yield "history"
    for failure in letter.history:
        then = f", waited {seconds(failure.delay_ms)}s" if failure.delay_ms is not None else ""
        if failure.rule:
            then += f", retry {failure.rule_retry} of the rule for {failure.rule}"
        yield f"  {time_of(failure.at_ms)}  {_when(failure)}: {failure.error}{then}"
    if not letter.history:
        yield "  none"
    for title in ("headers", "properties"):
        yield title
        for name, value in details[title].items():
            yield f"  {name}: {_text(value)}"
    if "arguments" in details:
        yield "arguments"
        for name, value in details["arguments"].items():
            yield f"  {name}: {value if isinstance(value, str) else _text(value)}"
    yield "traceback"
    yield from (f"  {line}" for line in record.traceback.splitlines() or ["none"])


def _text(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False)
    except RecursionError:
        return json_text(value)


def _when(failure: Failure) -> str:
    if failure.worker:
        return f"attempt {failure.attempt} on {failure.worker}"
    # It died outside a worker: it was cancelled while it waited, or the broker dropped it.
    return f"after attempt {failure.attempt}" if failure.attempt else "before its first attempt"


@click.command("export")
@selects
@click.option(
    "--output",
    "-o",
    metavar="FILE",
    default="-",
    help="Write to this new file, which only you can read; not to stdout.",
)
@json_option
def export_dead(ctx: click.Context, query: LetterQuery, output: str, *, as_json: bool) -> None:
    """Write dead letters as lines of JSON, with their arguments. They stay where they are."""
    reporter = Reporter()
    with (
        app_of(ctx) as app,
        SelectedLetters(app, query, monitor=reporter.monitor) as letters,
        _opened(output) as file,  # created only if the queues can be read
        reporter.bar("reading"),
    ):
        count = export_letters(letters, file)
    if as_json and output != "-":
        json_line({"exported": count, "file": output})
    else:
        click.echo(f"{count} exported", err=True)
    if report_missing(group=letters.absent_groups):
        ctx.exit(1)


@contextmanager
def _opened(output: str) -> Iterator[IO[str]]:
    if output == "-":
        yield sys.stdout
        return
    try:
        # Only this user may read it: it has the arguments of tasks.
        descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError as exc:
        raise click.UsageError(f"The file {output} exists; give another one.") from exc
    except OSError as exc:
        raise click.UsageError(f"The file {output} cannot be written: {exc.strerror}.") from exc
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        yield file
