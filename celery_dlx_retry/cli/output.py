"""What every command says in the same way: tables, JSON lines, progress, one sentence for what went wrong.

On a terminal with rich installed (``celery-dlx-retry[cli]``) tables are drawn; piped, they are lines with tabs, for cut
and awk. Whatever came from a message is made printable on the way.
"""

from __future__ import annotations

import json
import select
import sys
from contextlib import contextmanager
from datetime import datetime, timezone
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import click
from amqp.exceptions import AMQPError
from kombu.exceptions import KombuError

from celery_dlx_retry.errors import DLXError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence


@contextmanager
def one_sentence() -> Iterator[None]:
    """No traceback for a broker that is down or a setting that is wrong."""
    try:
        yield
    except DLXError as exc:
        raise click.ClickException(str(exc)) from exc
    except (AMQPError, KombuError, OSError) as exc:
        if isinstance(exc, BrokenPipeError) and _nobody_reads():
            raise  # as in "| head": click ends quietly
        raise click.ClickException(f"The broker cannot be reached: {exc}.") from exc


def _nobody_reads() -> bool:
    """Whether it is our output that broke, not the way to the broker."""
    try:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
        return bool(poll.poll(0))
    except (OSError, ValueError, AttributeError):  # no file at all, or no poll(), as on Windows
        return False


json_option = click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
yes_option = click.option("--yes", is_flag=True, help="Do not ask.")


def json_line(facts: Mapping[str, Any]) -> None:
    """Print one object of ``--json``."""
    click.echo(json.dumps(facts, ensure_ascii=False))


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str = "") -> None:
    """Print rows under these columns; an empty cell is a dash."""
    if not is_terminal():
        click.echo("\t".join(columns))
        for row in _cells(rows):
            click.echo("\t".join(row))
        return
    from rich.console import Console  # noqa: PLC0415 - an extra

    Console().print(drawn(columns, rows, title=title))


def drawn(columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str = "") -> Any:
    """The same as a rich table, for who draws it again and again."""
    from rich.table import Table  # noqa: PLC0415 - an extra
    from rich.text import Text  # noqa: PLC0415

    it = Table(title=title or None, title_justify="left", header_style="bold")
    for column in columns:
        it.add_column(column, overflow="fold")  # a cut id is none
    for row in _cells(rows):
        it.add_row(*map(Text, row))
    return it


def _cells(rows: Iterable[Sequence[object]]) -> Iterator[list[str]]:
    for row in rows:
        yield [printable(str(cell)) if cell not in {None, ""} else "-" for cell in row]


@contextmanager
def progress(what: str, total: int | None) -> Iterator[Callable[[], None]]:
    """A bar on a terminal, nothing elsewhere; call what it yields once per step."""
    if not is_terminal():
        yield lambda: None
        return
    from rich.console import Console  # noqa: PLC0415 - an extra
    from rich.progress import Progress  # noqa: PLC0415

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda: bar.advance(task)


def is_terminal() -> bool:
    """Whether somebody looks who can be shown more than lines."""
    return sys.stdout.isatty() and find_spec("rich") is not None


def printable(text: str) -> str:
    """What anybody put into a message may not steer a terminal."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)


def counted(number: int, noun: str) -> str:
    """``1 lane``, ``2 lanes``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def time_of(at_ms: int) -> str:
    """A moment, in UTC."""
    return datetime.fromtimestamp(at_ms / 1000, timezone.utc).strftime("%Y-%m-%d %H:%M:%S") if at_ms else "?"
