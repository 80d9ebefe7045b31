"""``celery dlx dead export`` and ``dead import``: dead letters as lines of JSON, and back."""

from __future__ import annotations

import os
import shutil
import sys
from collections import Counter
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, TYPE_CHECKING

import click

from celery_dlx_retry.app.context import context_of
from celery_dlx_retry.broker.bound_publish import publish_to_queue
from celery_dlx_retry.broker.dead_letter_moves import check_message, takes_body
from celery_dlx_retry.broker.dead_letters import browse, depth
from celery_dlx_retry.cli.audit import audit
from celery_dlx_retry.cli.context import connection_of, management_option
from celery_dlx_retry.cli.dead.known import KnownLetters
from celery_dlx_retry.cli.dead.selection import Selection, selects
from celery_dlx_retry.cli.errors import changes_something, one_sentence
from celery_dlx_retry.cli.output import counted, json_line, json_option, printable, progress, yes_option
from celery_dlx_retry.cli.parameters import MOST, QUEUE_NAME
from celery_dlx_retry.deadletters.export import from_line, to_line
from celery_dlx_retry.deadletters.filter import LetterFilter
from celery_dlx_retry.deadletters.letter import dead_message
from celery_dlx_retry.errors import InvalidExportLine, Missing, Unpublishable
from celery_dlx_retry.wire.header_size import check_name

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator

    from kombu.connection import Connection

    from celery_dlx_retry.broker.sync_publisher import Publisher
    from celery_dlx_retry.deadletters.letter import DeadMessage
    from celery_dlx_retry.topology.names import Names

# No message has more bytes than RabbitMQ lets it, 512 MiB at most, and most have far fewer: this is for files that are
# no export at all.
_LONGEST_LINE = 768 * 2**20
# RabbitMQ 4 takes messages of 16 MiB unless it is configured otherwise, older ones take 128 MiB.
_SMALLEST_LIMIT = 2**24


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
@click.option(
    "--to-queue",
    type=QUEUE_NAME,
    metavar="NAME",
    help="Into this queue, instead of the dead-letter queues they came from.",
)
@click.option(
    "--skip", type=click.IntRange(min=0, max=MOST), default=0, help="Without the first lines, which are imported."
)
@click.option("--again", is_flag=True, help="Also import letters of which an edited version is there.")
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
    app = ctx.obj.app
    selection = Selection(app=app, named=(), chosen=LetterFilter(), management_url=management_url)
    counts: Counter[str] = Counter()
    with ExitStack() as stack:
        lines = stack.enter_context(_rewindable(file))
        stack.enter_context(one_sentence(app))
        letters = _Letters(lines, skip=skip, to_queue=to_queue, queues=_places(selection, to_queue))
        publisher, names = context_of(app).publisher, context_of(app).names
        places, total = letters.check(publisher, names)
        if total and not yes:
            question = f"Import {counted(total, 'dead letter')} into {', '.join(sorted(places))}?"
            click.confirm(printable(question), abort=True, err=True)
        known = stack.enter_context(KnownLetters())
        _learn(known, stack.enter_context(connection_of(app)), places)
        with publisher.connection():
            pass  # there is one: from here on something is done
        changes_something()
        try:
            with progress("importing", total) as step:
                for letter in letters:
                    counts[_import(publisher, names, letter, known, again=again)] += 1
                    step()
        except InvalidExportLine as exc:
            raise click.ClickException(f"The file has changed since it was checked: {exc.problem}.") from exc
        finally:
            audit(
                "dead import",
                imported=counts["imported"],
                already_there=counts["there"],
                edited=counts["edited"],
                file=printable(file.name),
            )
            if counts.total() < total:
                click.echo(f"{counts['imported']} imported; go on with --skip {skip + counts.total()}", err=True)
    facts = {"imported": counts["imported"], "already_there": counts["there"], "edited": counts["edited"]}
    if as_json:
        json_line(facts)
    else:
        there = f", {counts['there']} already there" if counts["there"] else ""
        edited = (
            f", {counts['edited']} there in an edited version (--again imports them, too)" if counts["edited"] else ""
        )
        click.echo(f"{counts['imported']} imported{there}{edited}")
    if counts["edited"]:
        ctx.exit(1)


def _import(publisher: Publisher, names: Names, letter: DeadMessage, known: KnownLetters, *, again: bool) -> str:
    """Put a letter into its queue if it is not there; return what became of it."""
    if known.takes(letter):
        return "there"
    if not again and known.has_other_version(letter):
        return "edited"
    publish_to_queue(publisher, names, letter.queue, letter.message, as_found=True)
    return "imported"


def _places(selection: Selection, to_queue: str | None) -> Container[str]:
    """Return the queues that letters may be put into: the dead-letter queues of this prefix that exist."""
    with connection_of(selection.app) as connection:
        if to_queue is None:
            return selection.queues(connection)
        try:
            check_name("the name of the queue", to_queue)
            to_queue.encode()
        except (Unpublishable, UnicodeError) as exc:
            raise click.UsageError("--to-queue: a queue's name is a text of at most 255 bytes.") from exc
        if depth(connection, to_queue) is None:
            raise Missing(kind="queue", name=to_queue, cure="Nothing was imported.")
    return {to_queue}


class _Letters:
    """The letters of a file, as they will lie in their queues; iterate twice. Each line is checked each time."""

    def __init__(self, lines: IO[bytes], *, skip: int, to_queue: str | None, queues: Container[str]) -> None:
        self._lines, self._skip, self._to_queue, self._queues = lines, skip, to_queue, queues

    def __iter__(self) -> Iterator[DeadMessage]:
        for _, letter in self._numbered():
            yield letter

    def check(self, publisher: Publisher, names: Names) -> tuple[set[str], int]:
        """Return the queues that are named, and the number of letters; raise NoExport if any cannot be imported."""
        queues: set[str] = set()
        count, largest, its_line = 0, 0, 0
        for number, letter in self._numbered():
            queues.add(letter.queue)
            count += 1
            if len(letter.message.body) > largest:
                largest, its_line = len(letter.message.body), number
        if largest > _SMALLEST_LIMIT and not takes_body(publisher, names, largest):
            raise InvalidExportLine(line=its_line, problem=f"the broker takes no body of {largest} bytes")
        return queues, count

    def _numbered(self) -> Iterator[tuple[int, DeadMessage]]:
        self._lines.seek(0)
        number = 0
        while line := self._lines.readline(_LONGEST_LINE + 1):
            number += 1
            if number > self._skip:
                yield number, self._letter(line, number)

    def _letter(self, line: bytes, number: int) -> DeadMessage:
        if len(line) > _LONGEST_LINE:
            raise InvalidExportLine(line=number, problem=f"it is longer than {_LONGEST_LINE} bytes")
        named, message = from_line(line, number=number)
        queue = self._to_queue or named
        if queue not in self._queues:
            problem = f"{queue!r:.300} is not a dead-letter queue of this app that exists; --to-queue names another one"
            raise InvalidExportLine(line=number, problem=problem)
        try:
            check_message(message)
            return dead_message(message, queue=queue, exchange="", routing_key=queue)
        except Unpublishable as exc:
            raise InvalidExportLine(line=number, problem=f"{exc.what} {exc.problem}") from exc


def _learn(known: KnownLetters, connection: Connection, queues: Iterable[str]) -> None:
    depths = {queue: lying for queue in sorted(queues) if (lying := depth(connection, queue)) is not None}
    with progress("reading what is there", sum(depths.values())) as step:
        for queue in depths:
            for letter in browse(connection, queue):
                known.add(letter)
                step()


def _rewindable(file: Path) -> IO[bytes]:
    """Return a file that can be read twice; a pipe is copied into one that no other process can open."""
    try:
        source: IO[bytes] = click.open_file(str(file), "rb")
        if source.seekable():
            return source
        copied = TemporaryFile()  # noqa: SIM115 - the caller's to close
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
        # Arguments are in it.
        descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError as exc:
        raise click.UsageError(f"The file {output} exists; give another one.") from exc
    except OSError as exc:
        raise click.UsageError(f"The file {output} cannot be written: {exc.strerror}.") from exc
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        yield file
