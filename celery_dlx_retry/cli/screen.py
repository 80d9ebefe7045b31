"""Draw the one screen as lines: they fit any width, and the height if there is one. Numbers and ids are never split."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from celery_dlx_retry.cli.output import most_of, printable, time_of
from celery_dlx_retry.sentences import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from celery_dlx_retry.broker.queue_status import QueueState
    from celery_dlx_retry.operations.overview import GroupLine, Overview, QueueLine

_MOST_PROBLEM_LINES = 6
_LEAST_GROUPS = 3
_STYLES = {"error": "red", "warning": "yellow"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line of the screen in one style."""

    text: str = ""
    colour: str | None = None
    bold: bool = False
    is_selected: bool = False

    def __str__(self) -> str:
        return click.style(self.text, fg=self.colour, bold=self.bold or None, reverse=self.is_selected or None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of a table that fits its width."""

    name: str
    is_number: bool = False
    #: A text may be shortened to so many characters; 0: never.
    least: int = 0
    #: On a narrow screen the column with the highest number goes first; 0: never.
    drop: int = 0


_QUEUES = (
    Column(name="work queue", least=12),
    Column(name="ready", is_number=True),
    Column(name="running", is_number=True, drop=2),
    Column(name="waiting", is_number=True),
    Column(name="next due", is_number=True, drop=1),
    Column(name="dead", is_number=True),
    Column(name="last 10 min", is_number=True),
    Column(name="workers", is_number=True, drop=3),
)
_GROUPS = (
    Column(name="group"),
    Column(name="count", is_number=True),
    Column(name="task", least=18),
    Column(name="queue", least=8, drop=3),
    Column(name="reason", drop=2),
    Column(name="error", least=18),
    Column(name="where", least=12, drop=4),
    Column(name="trend", drop=1),
    Column(name="last seen", is_number=True),
)
_LANES = (
    Column(name="lane", least=20),
    Column(name="waiting", is_number=True),
    Column(name="next due", is_number=True),
)


def screen(  # noqa: PLR0913 - all keywords
    overview: Overview,
    *,
    width: int,
    height: int | None = None,
    lanes: bool = False,
    selected: int | None = None,
    note: str = "",
) -> list[Line]:
    """Return the lines of the overview: what is wrong, the work queues, the groups, and the lanes if asked for."""
    head = [*_head(overview, width)]
    groups = overview.groups or ()
    room = None if height is None or lanes else max(0, height - len(head) - (6 if groups else 4))
    least = min(len(groups), _LEAST_GROUPS)
    queues = _rows(_QUEUES, overview.queues, _queue_row, overview, width)
    body = _limited(queues, None if room is None else max(2, room - least) + 1, "work queue")
    if groups:
        found = _rows(_GROUPS, groups, _group_row, overview, width)
        found = [
            Line(text=it.text, bold=it.bold, is_selected=number - 1 == selected) for number, it in enumerate(found)
        ]
        left = None if room is None else max(least, room - len(body) + 1) + 1
        body += [Line(), *_limited(found, left, "group")]
    if lanes and overview.lanes:
        body += [Line(), *_rows(_LANES, overview.lanes, _lane_row, overview, width)]
    return [*head, *body, Line(), Line(text=_cut(note or _totals(overview), width))]


def group_page(group: GroupLine, *, width: int, now_ms: int) -> list[Line]:
    """Return everything about one group, and the commands for it."""
    facts = {
        "error": group.error,
        "place": group.where,
        "letters": f"{group.count}, first {time_of(group.first_ms)}, last {time_of(group.last_ms)} UTC"
        f" ({_ago(group.last_ms, now_ms)})",
        "trend": group.trend,
        **{
            name: ", ".join(f"{key or '-'}: {count}" for key, count in counts.items())
            for name, counts in (("tasks", group.tasks), ("queues", group.queues), ("reasons", group.reasons))
        },
        "newest": group.sample_id or "-",
        "says": group.sample_error or "-",
    }
    commands = [
        f"celery dlx dead show {group.sample_id}",
        f"celery dlx dead list --group {group.group}",
        f"celery dlx dead replay --group {group.group} --canary 1",
    ]
    lines = [Line(text=f"group {group.group}", bold=True)]
    for name, value in facts.items():
        lines += _wrapped(f"{name:<8} {printable(value)}", width, indent=9)
    return [*lines, Line(), *(Line(text=printable(command)) for command in commands)]


def fitted(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """Return a line for the names and for each row; drop columns, then shorten texts, until they fit."""
    shown = list(range(len(columns)))
    natural = [max(len(it.name), *(len(row[number]) for row in rows), 0) for number, it in enumerate(columns)]

    def least(number: int) -> int:
        return min(natural[number], columns[number].least or natural[number])

    while sum(map(least, shown)) + 2 * (len(shown) - 1) > width:
        droppable = [number for number in shown if columns[number].drop]
        if not droppable:
            break
        shown.remove(max(droppable, key=lambda number: columns[number].drop))
    sizes = dict(zip(shown, (natural[number] for number in shown), strict=True))
    while sum(sizes.values()) + 2 * (len(shown) - 1) > width:
        widest = max(shown, key=lambda number: sizes[number] - least(number))
        if sizes[widest] == least(widest):
            break
        sizes[widest] -= 1
    return [
        "  ".join(
            f"{_cut(row[number], size):{'>' if columns[number].is_number else '<'}{size}}"
            for number, size in sizes.items()
        ).rstrip()
        for row in ([it.name for it in columns], *rows)
    ]


def _head(overview: Overview, width: int) -> Iterator[Line]:
    problems = [
        line
        for it in overview.problems
        for line in _wrapped(printable(it.fact), width, indent=2, colour=_STYLES[it.severity])
    ]
    if len(problems) > _MOST_PROBLEM_LINES:
        rest = Line(text="There is more: celery dlx doctor", colour="red")
        problems = [*problems[: _MOST_PROBLEM_LINES - 1], rest]
    yield from problems or [Line(text="Nothing is wrong now.", colour="green")]
    yield Line()


def _rows(
    columns: Sequence[Column], items: Iterable[object], row: object, overview: Overview, width: int
) -> list[Line]:
    found = list(items)
    cells = [[printable(str(cell)) for cell in row(it, overview.read_at_ms)] for it in found]  # type: ignore[operator]
    names, *texts = fitted(columns, cells, width)
    colours = ["red" if _is_missing(it) else None for it in found]
    return [
        Line(text=names, bold=True),
        *(Line(text=text, colour=colour) for text, colour in zip(texts, colours, strict=True)),
    ]


def _is_missing(it: object) -> bool:
    return not getattr(it, "exists", True) and bool(getattr(it, "was_used", True))


def _queue_row(it: QueueLine, now_ms: int) -> tuple[object, ...]:
    return (
        it.queue or "(shared lanes)",
        it.ready if it.exists else "missing" if it.was_used else "none",
        "-" if it.running is None else it.running,
        it.waiting,
        "-" if it.next_ms is None else _until(it.next_ms, now_ms),
        it.dead,
        "-" if it.dead_lately is None else it.dead_lately,
        it.workers,
    )


def _group_row(it: GroupLine, now_ms: int) -> tuple[object, ...]:
    return (
        it.group,
        it.count,
        most_of(it.tasks),
        most_of(it.queues),
        most_of(it.reasons),
        it.error,
        it.where,
        it.trend,
        _ago(it.last_ms, now_ms),
    )


def _lane_row(it: QueueState, now_ms: int) -> tuple[object, ...]:
    return it.queue, it.ready, "-" if it.next_ms is None else _until(it.next_ms, now_ms)


def _limited(lines: list[Line], room: int | None, noun: str) -> list[Line]:
    """Return as many lines as there is room for; the last one says how many there are more."""
    if room is None or len(lines) <= room:
        return lines
    left = len(lines) - room + 1
    return [*lines[: room - 1], Line(text=f"and {counted(left, f'more {noun}')}")]


def _totals(overview: Overview) -> str:
    waiting = sum(it.ready for it in overview.lanes)
    where = f"in {counted(len(overview.lanes), 'lane')}" if overview.lanes else "waiting"
    ready = sum(it.ready for it in overview.queues)
    counts = f"{ready} ready, {waiting} {'waiting ' if overview.lanes else ''}{where}, {overview.dead} dead"
    at = time_of(overview.read_at_ms).partition(" ")[2]
    return f"{counts}, {counted(overview.orphans, 'orphan')}; {overview.broker}, {at} UTC"


def _wrapped(text: str, width: int, *, indent: int, colour: str | None = None) -> list[Line]:
    lines = textwrap.wrap(
        text, width, subsequent_indent=" " * indent, break_long_words=True, break_on_hyphens=False
    )  # a word that is longer than the screen has to be broken
    return [Line(text=line, colour=colour) for line in lines]


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: max(0, width - 1)]}…"


def _until(at_ms: int, now_ms: int) -> str:
    return f"in {_span(at_ms - now_ms)}" if at_ms > now_ms else "now"


def _ago(at_ms: int, now_ms: int) -> str:
    return f"{_span(max(0, now_ms - at_ms))} ago" if at_ms else "-"


def _span(ms: int) -> str:
    seconds = ms // 1000
    for size, most, unit in ((1, 60, "s"), (60, 60, "min"), (3600, 48, "h")):
        if seconds < size * most:
            return f"{seconds // size} {unit}"
    return f"{seconds // 86_400} d"
