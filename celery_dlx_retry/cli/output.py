"""What every command prints in the same way: tables, JSON lines, progress.

On a terminal tables are drawn if rich is installed (the extra ``cli``), and padded if not; piped, they are lines with
tabs, for cut and awk. Every line goes through ``echo``, every question through ``confirm``, every object through
``json_line``: these three escape what came from a message.
"""

from __future__ import annotations

import shutil
import sys
from contextlib import contextmanager
from datetime import datetime, timezone
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import click

from celery_dlx_retry.operations.monitor import NO_MONITOR, Monitor
from celery_dlx_retry.values import escaping

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

printable = escaping.printable

# A drawn column of words may get as narrow as this.
_NARROW = 12


json_option = click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
yes_option = click.option("--yes", is_flag=True, help="Do not ask.")


def echo(line: str = "", *, err: bool = False) -> None:
    """Print one line; a newline or a control character in it is written as an escape."""
    click.echo(printable(line), err=err)


def confirm(question: str) -> None:
    """Ask; anything but yes ends the command."""
    click.confirm(printable(question), abort=True, err=True)


def json_line(facts: Mapping[str, Any]) -> None:
    """Print one object of ``--json``: strict JSON in ASCII."""
    click.echo(escaping.json_text(facts))


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
            for line in lines:
                echo(line)
    else:
        for row in ([*columns], *_cells(rows)):
            click.echo("\t".join(row))  # each cell is printable


def _blocks(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    for row in rows:
        for column, cell in zip(columns, row, strict=True):
            echo(f"{column:<{max(map(len, columns))}}  {cell}")
        echo()


def _padded(rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns that line up."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def drawn(
    columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str = "", whole: Collection[str] = ()
) -> Any:
    """The same as a rich table, for who draws it again and again."""
    from rich.table import Table  # noqa: PLC0415 - an extra

    it = Table(title=plain(title) if title else None, title_justify="left", header_style="bold")
    for column in columns:
        it.add_column(column, overflow="fold", no_wrap=column in whole)  # a cut id is none
    for row in _cells(rows):
        it.add_row(*map(plain, row))
    return it


def plain(text: str) -> Any:
    """The text for a rich display: a str would be read as markup, and ``[red]`` in an error would colour it."""
    from rich.text import Text  # noqa: PLC0415 - an extra

    return Text(printable(text))


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
def monitored(what: str) -> Iterator[Monitor]:
    """Yield the monitor of an operation: a bar on a terminal, nothing elsewhere."""
    if not is_terminal():
        yield NO_MONITOR
        return
    from rich.console import Console  # noqa: PLC0415 - an extra
    from rich.progress import Progress  # noqa: PLC0415

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield Monitor(progress=lambda done, total: bar.update(task, completed=done, total=total))


def is_terminal() -> bool:
    """Whether stdout is a terminal and rich is installed."""
    return sys.stdout.isatty() and find_spec("rich") is not None


def counted(number: int, noun: str) -> str:
    """``1 lane``, ``2 lanes``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def seconds(delay_ms: int) -> str:
    """``0.5``, ``26843545.6``: every digit that there is, and no exponent."""
    whole, rest = divmod(delay_ms, 1000)
    return f"{whole}.{rest:03}".rstrip("0").rstrip(".")


def time_of(at_ms: int) -> str:
    """A moment, in UTC; ``?`` if it is not known, or no date that there is."""
    try:
        return datetime.fromtimestamp(at_ms / 1000, timezone.utc).strftime("%Y-%m-%d %H:%M:%S") if at_ms else "?"
    except (ValueError, OverflowError, OSError):  # a header may name any time
        return "?"
