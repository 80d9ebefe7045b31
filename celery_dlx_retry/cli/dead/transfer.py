"""``celery dlx dead export`` and ``dead import``: dead letters as lines of JSON, and back."""

from __future__ import annotations

import os
import shutil
import sys
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, TYPE_CHECKING

import click

from celery_dlx_retry.cli.context import MOST, QUEUE_NAME, app_of, management_option, report_missing
from celery_dlx_retry.cli.dead.options import Reporter, selects
from celery_dlx_retry.cli.errors import changes_something
from celery_dlx_retry.cli.output import confirm, counted, json_line, json_option, yes_option
from celery_dlx_retry.operations.select_letters import LetterQuery, SelectedLetters
from celery_dlx_retry.operations.transfer import Import, export_letters

if TYPE_CHECKING:
    from collections.abc import Iterator


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


@click.command("import")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path, allow_dash=True))
@click.option(
    "--to-queue",
    type=QUEUE_NAME,
    metavar="NAME",
    help="Put them into this queue, not into the dead-letter queues that they came from.",
)
@click.option(
    "--skip",
    type=click.IntRange(min=0, max=MOST),
    default=0,
    help="Skip this many lines, which an earlier run has imported.",
)
@click.option("--again", is_flag=True, help="Also import a letter if its queue has an edited version of it.")
@management_option
@yes_option
@json_option
@click.pass_context
def import_dead(  # noqa: PLR0913 - one per option
    ctx: click.Context,
    file: Path,
    to_queue: str | None,
    skip: int,
    management_url: str | None,
    *,
    again: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Put exported dead letters back into their queues. A dash reads them from the input."""
    if str(file) == "-" and not yes:
        raise click.UsageError("The letters come from the input, so that you could not answer: say --yes.")
    reporter = Reporter()
    with (
        app_of(ctx) as app,
        _rewindable(file) as lines,
        Import(
            app,
            lines,
            to_queue=to_queue,
            skip=skip,
            again=again,
            management_url=management_url,
            source=file.name,
            monitor=reporter.monitor,
        ) as letters,
    ):
        plan = letters.plan()
        if plan.total and not yes:
            confirm(f"Import {counted(plan.total, 'dead letter')} into {', '.join(sorted(plan.queues))}?")
        with reporter.bar("reading what is there"):
            letters.prepare()
        changes_something()
        try:
            with reporter.bar("importing"):
                letters.run()
        finally:
            result = letters.result
            if not result.is_complete:
                click.echo(f"{result.imported} imported; go on with --skip {result.lines_done}", err=True)
    if as_json:
        json_line({"imported": result.imported, "already_there": result.already_there, "edited": result.edited})
    else:
        there = f", {result.already_there} already there" if result.already_there else ""
        edited = f", {result.edited} there in an edited version (--again imports them, too)" if result.edited else ""
        click.echo(f"{result.imported} imported{there}{edited}")
    if result.edited:
        ctx.exit(1)


def _rewindable(file: Path) -> IO[bytes]:
    """Return a file that can be read twice: a copy, which no other process can open, if it is a pipe."""
    try:
        source: IO[bytes] = click.open_file(str(file), "rb")
        if source.seekable():
            return source
        copied = TemporaryFile()  # noqa: SIM115 - the caller closes it
        with source:
            shutil.copyfileobj(source, copied)
    except FileNotFoundError as exc:
        raise click.UsageError(f"There is no file {file}.") from exc
    except (OSError, ValueError) as exc:
        problem = exc.strerror if isinstance(exc, OSError) else exc
        raise click.UsageError(f"The file {file} cannot be read: {problem}.") from exc
    return copied


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
