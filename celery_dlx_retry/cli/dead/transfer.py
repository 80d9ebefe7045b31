"""``celery dlx dead export`` and ``dead import``: dead letters as lines of JSON, and back."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

import click

from celery_dlx_retry.broker.moves import put
from celery_dlx_retry.cli.audit import audit
from celery_dlx_retry.cli.dead.selection import selects
from celery_dlx_retry.cli.output import json_line, json_option, one_sentence, progress, yes_option
from celery_dlx_retry.core.export import from_line, to_line
from celery_dlx_retry.worker.runtime import runtime_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_dlx_retry.cli.dead.selection import Selection
    from celery_dlx_retry.core.message import Message


@click.command("export")
@selects
@click.option("--output", "-o", metavar="FILE", default="-", help="A new file, for you alone; otherwise the output.")
def export_dead(_ctx: click.Context, selection: Selection, output: str) -> None:
    """Write dead letters as lines of JSON, with their arguments; they stay where they are."""
    count = 0
    with _opened(output) as file, selection.reading() as letters:
        for letter in letters:
            file.write(f"{to_line(letter)}\n")
            count += 1
    click.echo(f"{count} exported", err=True)


@click.command("import")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--to-queue", metavar="NAME", help="Into this queue, instead of the dead-letter queues they came from.")
@click.option("--skip", type=click.IntRange(min=0), default=0, help="Without the first lines, which are imported.")
@yes_option
@json_option
@click.pass_context
def import_dead(  # noqa: PLR0913 - one per option
    ctx: click.Context, file: Path, to_queue: str | None, skip: int, *, yes: bool, as_json: bool
) -> None:
    """Put exported dead letters back into their dead-letter queues."""
    if not file.is_file():
        raise click.UsageError(f"There is no file {file}.")
    with one_sentence():
        count = sum(1 for _ in _messages(file, skip))  # all of it is sound, or nothing is done
    if not yes:
        click.confirm(f"Import {count} dead letters?", abort=True)
    imported = 0
    publisher = runtime_of(ctx.obj.app).publisher
    try:
        with one_sentence(), progress("importing", count) as step:
            for queue, message in _messages(file, skip):
                put(publisher, to_queue or queue, message)
                imported += 1
                step()
    finally:
        audit("dead import", imported=imported, file=file.name)
        if imported < count:
            click.echo(f"{imported} imported; go on with --skip {skip + imported}", err=True)
    if as_json:
        json_line({"imported": imported})
    else:
        click.echo(f"{imported} imported")


def _messages(file: Path, skip: int) -> Iterator[tuple[str, Message]]:
    with file.open(encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(lines, start=1):
            if number > skip:
                yield from_line(line, number=number)


@contextmanager
def _opened(output: str) -> Iterator[IO[str]]:
    if output == "-":
        yield sys.stdout
        return
    try:
        # Arguments are in it.
        descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError as exc:
        raise click.UsageError(f"The file {output} exists; give another one.") from exc
    except OSError as exc:
        raise click.UsageError(f"The file {output} cannot be written: {exc.strerror}.") from exc
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        yield file
