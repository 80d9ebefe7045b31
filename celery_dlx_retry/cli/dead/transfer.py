"""``celery dlx dead export`` and ``dead import``: dead letters as lines of JSON, and back."""

from __future__ import annotations

import os
import shutil
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, TYPE_CHECKING

import click

from celery_dlx_retry.broker.deadletters import browse, depth
from celery_dlx_retry.broker.moves import put
from celery_dlx_retry.cli.audit import audit
from celery_dlx_retry.cli.dead.known import KnownLetters
from celery_dlx_retry.cli.dead.selection import selects
from celery_dlx_retry.cli.ends import changes_something, one_sentence
from celery_dlx_retry.cli.output import counted, json_line, json_option, progress, yes_option
from celery_dlx_retry.cli.target import connection_of, insist_on_rabbitmq
from celery_dlx_retry.core.deadletter import dead_message
from celery_dlx_retry.core.export import from_line, to_line
from celery_dlx_retry.worker.runtime import runtime_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from kombu.connection import Connection

    from celery_dlx_retry.cli.dead.selection import Selection
    from celery_dlx_retry.core.deadletter import DeadMessage


@click.command("export")
@selects
@click.option("--output", "-o", metavar="FILE", default="-", help="A new file, for you alone; otherwise the output.")
@json_option
def export_dead(ctx: click.Context, selection: Selection, output: str, *, as_json: bool) -> None:
    """Write dead letters as lines of JSON, with their arguments. They stay where they are."""
    count = 0
    with selection.reading() as letters, _opened(output) as file:  # no file for what cannot be read
        for letter in letters:
            file.write(f"{to_line(letter)}\n")
            count += 1
    if as_json and output != "-":
        json_line({"exported": count, "file": output})
    else:
        click.echo(f"{count} exported", err=True)
    if selection.tells_missing():
        ctx.exit(1)


@click.command("import")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path, allow_dash=True))
@click.option("--to-queue", metavar="NAME", help="Into this queue, instead of the dead-letter queues they came from.")
@click.option("--skip", type=click.IntRange(min=0), default=0, help="Without the first lines, which are imported.")
@click.option("--again", is_flag=True, help="Also letters that lie there already.")
@yes_option
@json_option
@click.pass_context
def import_dead(  # noqa: PLR0913 - one per option
    ctx: click.Context, file: Path, to_queue: str | None, skip: int, *, again: bool, yes: bool, as_json: bool
) -> None:
    """Put exported dead letters back into their queues. A dash reads them from the input."""
    if str(file) == "-" and not yes:
        raise click.UsageError("The letters come from the input, so that you could not answer: say --yes.")
    app = ctx.obj.app
    insist_on_rabbitmq(app)
    with ExitStack() as stack:
        lines = stack.enter_context(_rewindable(file))
        stack.enter_context(one_sentence(app))
        queues: set[str] = set()
        count = 0
        for letter in _letters(lines, skip, to_queue):  # all of it is sound, or nothing is done
            queues.add(letter.queue)
            count += 1
        if not yes:
            places = ", ".join(sorted(queues))
            click.confirm(f"Import {counted(count, 'dead letter')} into {places}?", abort=True, err=True)
        known = stack.enter_context(KnownLetters())
        if not again:
            connection = stack.enter_context(connection_of(app))
            _learn(known, connection, queues)
        imported = there = 0
        publisher = runtime_of(app).publisher
        with publisher.connection():
            pass  # there is one: from here on something is done
        changes_something()
        try:
            with progress("importing", count) as step:
                for letter in _letters(lines, skip, to_queue):
                    if known.takes(letter):
                        there += 1
                    else:
                        put(publisher, letter.queue, letter.message)
                        imported += 1
                    step()
        finally:
            audit("dead import", imported=imported, already_there=there, file=file.name)
            if imported + there < count:
                click.echo(f"{imported} imported; go on with --skip {skip + imported + there}", err=True)
    if as_json:
        json_line({"imported": imported, "already_there": there})
    else:
        click.echo(f"{imported} imported" + (f", {there} already there (--again imports them, too)" if there else ""))


def _learn(known: KnownLetters, connection: Connection, queues: Iterable[str]) -> None:
    depths = {queue: lying for queue in sorted(queues) if (lying := depth(connection, queue)) is not None}
    with progress("reading what is there", sum(depths.values())) as step:
        for queue in depths:
            for letter in browse(connection, queue):
                known.add(letter)
                step()


def _letters(lines: IO[str], skip: int, to_queue: str | None) -> Iterator[DeadMessage]:
    """As they will lie in their queues."""
    lines.seek(0)
    for number, line in enumerate(lines, start=1):
        if number > skip:
            queue, message = from_line(line, number=number)
            yield dead_message(message, queue=to_queue or queue, exchange="", routing_key=to_queue or queue)


def _rewindable(file: Path) -> IO[str]:
    """A file that can be read twice; a pipe is copied into one that nobody else can open."""
    try:
        source: IO[str] = click.open_file(str(file), encoding="utf-8", errors="replace")
        if source.seekable():
            return source
        copied = TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115 - the caller's to close
        with source:
            shutil.copyfileobj(source, copied)
    except FileNotFoundError as exc:
        raise click.UsageError(f"There is no file {file}.") from exc
    except OSError as exc:
        raise click.UsageError(f"The file {file} cannot be read: {exc.strerror}.") from exc
    return copied


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
