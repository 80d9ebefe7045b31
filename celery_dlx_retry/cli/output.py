"""How commands print: lines, tables, JSON lines, questions and progress.

On a terminal, rich draws tables if it is installed (the extra ``cli``); without it, columns are padded. In a pipe, a
table is lines with tabs, for cut and awk. Every line goes through ``echo``, every question through ``confirm``, every
object through ``json_line``: these three escape text that came with a message.
"""

from __future__ import annotations

import shutil
import sys
import time
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

# The least width of a column whose cells rich may wrap.
_NARROW = 12
_ERASE = "\r\x1b[2K"
_BAR_SECONDS = 0.1

json_option = click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
yes_option = click.option("--yes", is_flag=True, help="Do not ask.")


def echo(line: str = "", *, err: bool = False) -> None:
    """Print one line; write newlines and control characters as escapes."""
    _Bar.clear()
    click.echo(printable(line), err=err)


def confirm(question: str) -> None:
    """Ask; end the command unless the answer is yes."""
    click.confirm(printable(question), abort=True, err=True)


def json_line(facts: Mapping[str, Any]) -> None:
    """Print one object of ``--json``: strict JSON in ASCII."""
    _Bar.clear()
    click.echo(escaping.json_text(facts))


def table(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    whole: Collection[str] = (),
    drop: Iterable[str] = (),
) -> None:
    """Print rows under these columns; an empty cell is a dash.

    The cells of a ``whole`` column, for example ids that a user copies, are never wrapped. On a terminal that is too
    narrow, the columns in ``drop`` go, the first one first, until no cell is wrapped. If it is still too narrow for the
    ``whole`` columns, each row is a block of lines.
    """
    if is_terminal():
        from rich.console import Console  # noqa: PLC0415 - an extra

        console, cells = Console(), list(_cells(rows))
        for name in drop:
            if console.width < _least_width(columns, cells, columns):
                place = columns.index(name)
                columns, *cells = ([*row[:place], *row[place + 1 :]] for row in (columns, *cells))
        if whole and console.width < _least_width(columns, cells, whole):
            _blocks(columns, cells)
        else:
            console.print(_rich_table(columns, cells, whole))
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
    """Return one line per row; pad the cells so that columns line up."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _rich_table(columns: Sequence[str], cells: Iterable[Sequence[str]], whole: Collection[str]) -> Any:
    from rich.table import Table  # noqa: PLC0415 - an extra
    from rich.text import Text  # noqa: PLC0415

    drawn = Table(header_style="bold")
    for column in columns:
        drawn.add_column(column, overflow="fold", no_wrap=column in whole)
    for row in cells:
        drawn.add_row(*map(Text, row))  # rich reads a str as markup: ``[red]`` in an error would colour it
    return drawn


def _least_width(columns: Sequence[str], cells: Sequence[Sequence[str]], whole: Collection[str]) -> int:
    """Return the least width of a table that rich draws, with borders."""
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
    """Yield the monitor of an operation: a line with its progress on a terminal, nothing elsewhere."""
    if not (sys.stdout.isatty() and sys.stderr.isatty()):
        yield NO_MONITOR
        return
    try:
        yield Monitor(progress=_Bar(what).show)
    finally:
        _Bar.clear()


class _Bar:
    """The last line of the terminal while an operation runs. Each line that is printed takes its place first."""

    _is_shown = False

    def __init__(self, what: str) -> None:
        self._what, self._next = what, 0.0

    def show(self, done: int, total: int) -> None:
        """Write how far the operation is, at most ten times per second."""
        if (now := time.monotonic()) >= self._next:
            self._next = now + _BAR_SECONDS
            percent = f", {100 * done // total} %" if total else ""
            click.echo(f"{_ERASE}{self._what}: {done} of {total}{percent}", err=True, nl=False)
            _Bar._is_shown = True

    @classmethod
    def clear(cls) -> None:
        """Erase the line, if it is shown."""
        if cls._is_shown:
            click.echo(_ERASE, err=True, nl=False)
            cls._is_shown = False


def is_terminal() -> bool:
    """Whether stdout is a terminal and rich is installed."""
    return sys.stdout.isatty() and find_spec("rich") is not None


def most_of(counts: Mapping[str, int]) -> str:
    """Return the most frequent name, and how many others there are: ``shop.charge +2``."""
    names = sorted(counts, key=lambda name: (-counts[name], name))
    return f"{names[0] or '-'} +{len(names) - 1}" if len(names) > 1 else "".join(names)


def seconds(delay_ms: int) -> str:
    """Return ``0.5``, ``26843545.6``: all digits, no exponent."""
    whole, rest = divmod(delay_ms, 1000)
    return f"{whole}.{rest:03}".rstrip("0").rstrip(".")


def time_of(at_ms: int) -> str:
    """Return a time in UTC; ``?`` if it is not known or out of range."""
    try:
        return datetime.fromtimestamp(at_ms / 1000, timezone.utc).strftime("%Y-%m-%d %H:%M:%S") if at_ms else "?"
    except (ValueError, OverflowError, OSError):  # a header may name any time
        return "?"
