"""What every command prints in the same way: tables, JSON lines, progress.

On a terminal tables are drawn if rich is installed (the extra ``cli``), and padded if not; piped, they are lines with
tabs, for cut and awk. Whatever came from a message is made printable on the way.
"""

from __future__ import annotations

import json
import shutil
import sys
from contextlib import contextmanager
from datetime import datetime, timezone
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

# A drawn column of words may get as narrow as this.
_NARROW = 12


json_option = click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
yes_option = click.option("--yes", is_flag=True, help="Do not ask.")


def json_line(facts: Mapping[str, Any]) -> None:
    """Print one object of ``--json``."""
    click.echo(json.dumps(facts, ensure_ascii=False))


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, whole: Collection[str] = ()) -> None:
    """Print rows under these columns; an empty cell is a dash.

    What is in a ``whole`` column, as an id that somebody is to copy, is never broken over lines: on a terminal that is
    too narrow for that, each row is printed as a block of lines.
    """
    if is_terminal():
        from rich.console import Console  # noqa: PLC0415 - an extra

        console, cells = Console(), list(_cells(rows))
        if whole and console.width < _least_width(columns, cells, whole):
            _blocks(columns, cells)
        else:
            console.print(drawn(columns, cells, whole=whole))
    elif sys.stdout.isatty():
        cells = list(_cells(rows))
        lines = _padded([columns, *cells])
        if max(map(len, lines)) > shutil.get_terminal_size().columns:
            _blocks(columns, cells)
        else:
            click.echo("\n".join(lines))
    else:
        for row in ([*columns], *_cells(rows)):
            click.echo("\t".join(row))


def _blocks(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    for row in rows:
        for column, cell in zip(columns, row, strict=True):
            click.echo(f"{column:<{max(map(len, columns))}}  {cell}")
        click.echo()


def _padded(rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns that line up."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def drawn(
    columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str = "", whole: Collection[str] = ()
) -> Any:
    """The same as a rich table, for who draws it again and again."""
    from rich.table import Table  # noqa: PLC0415 - an extra
    from rich.text import Text  # noqa: PLC0415

    it = Table(title=title or None, title_justify="left", header_style="bold")
    for column in columns:
        it.add_column(column, overflow="fold", no_wrap=column in whole)  # a cut id is none
    for row in _cells(rows):
        it.add_row(*map(Text, row))
    return it


def _least_width(columns: Sequence[str], cells: Sequence[Sequence[str]], whole: Collection[str]) -> int:
    """Of a drawn table, borders included."""
    widths = {
        column: max(len(column), *(len(row[number]) for row in cells)) if cells else len(column)
        for number, column in enumerate(columns)
    }
    return 1 + sum(3 + (width if column in whole else min(width, _NARROW)) for column, width in widths.items())


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


def seconds(delay_ms: int) -> str:
    """``0.5``, ``26843545.6``: every digit that there is, and no exponent."""
    whole, rest = divmod(delay_ms, 1000)
    return f"{whole}.{rest:03}".rstrip("0").rstrip(".")


def time_of(at_ms: int) -> str:
    """A moment, in UTC."""
    return datetime.fromtimestamp(at_ms / 1000, timezone.utc).strftime("%Y-%m-%d %H:%M:%S") if at_ms else "?"
