"""Figures as tables: for the terminal, and for the page in docs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from benchmarks.compare.contenders import BY_KEY, NATIVE, PIPELINED
from benchmarks.compare.numbers import NONE, figure, in_turns, ratio, total_cpu, typical
from benchmarks.compare.targets import targets
from benchmarks.compare.waiting import PATIENCE_SECONDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from benchmarks.compare.run import Results

BEGIN, END = "<!-- figures: written by make bench -->\n", "<!-- end of figures -->"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """One table."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


def sheets(found: Results) -> Iterator[Sheet]:
    """All tables that these results fill."""
    rows = tuple((each.text, each.wanted, each.measured, each.verdict) for each in targets(found))
    if rows:
        yield Sheet(title="Targets", head=("target", "wanted", "measured", ""), rows=rows)
    for pool, rates in {**(found.get("throughput") or {}), **(found.get("pools") or {})}.items():
        yield _throughput(pool, rates)
    if steps := found.get("steps"):
        yield _steps(steps)
    if late := found.get("lateness"):
        yield _lateness(late)
    if waiting := found.get("waiting"):
        yield _memory(waiting, found.get("wire") or {})
        yield _depth(waiting)
    for rabbitmq, fresh in (found.get("fresh") or {}).items():
        if fresh:
            yield _fresh(rabbitmq, fresh)
    if start := found.get("start"):
        yield _start(start)
    if growth := found.get("growth"):
        yield _growth(growth)


def _throughput(pool: str, rates: Results) -> Sheet:
    base = rates.get("countdown")
    rounds = min((sum(map(bool, those)) for key, those in rates.items() if key != PIPELINED.key), default=0)
    return Sheet(
        title=f"Retries through one worker, {pool}",
        head=("", "retries/s", "of countdown's", "worker CPU, ms", "broker CPU, ms"),
        rows=tuple(
            (
                _title(key),
                figure(typical(those, "per_second")),
                NONE
                if key == "plain"
                else figure(
                    in_turns(lambda it, other: ratio(it["per_second"], other["per_second"]), those, base), " times"
                ),
                figure(typical(those, "worker_ms")),
                figure(typical(those, "broker_ms")),
            )
            for key, those in rates.items()
        ),
        note="CPU is that of one retry: delivery, failing run, publish, wait and return. "
        "It is corrected for the slowness of the machine; retries/s are not corrected. "
        "Plain tasks of Celery succeed; their row is for comparison. "
        + (f"Medians of {rounds} rounds." if rounds > 1 else "One round."),
    )


def _steps(steps: Results) -> Sheet:
    return Sheet(
        title="What each step of a retry costs the broker",
        head=("a message is taken, published and acknowledged", "broker CPU, ms"),
        rows=tuple((_title(key), figure(rate["broker_ms"])) for key, rate in steps.items()),
        note="Kombu alone, one process, classic queues, all at the same rate (500 per second in the full run), "
        "because a broker needs less CPU per message at a higher rate.",
    )


def _lateness(late: Results) -> Sheet:
    def cell(found: Any) -> str:
        if not found:
            return NONE
        times = " / ".join(figure(found[name]) for name in ("p50", "p99", "most"))
        text = f"{times} ms, {found['early']} early of {found['count']:,}"
        return text + (f", {found['missing']} not back" if found["missing"] else "")

    return Sheet(
        title="Lateness",
        head=("p50 / p99 / most", "at idle", "beside a crowd that expires", "the crowd itself"),
        rows=tuple(
            (_title(key), *(cell(it[name]) for name in ("idle", "beside", "crowd"))) for key, it in late.items()
        ),
        note="With Celery's countdown the worker that holds the crowd runs it; "
        "with the others one Python process takes the crowd from its queue. "
        f"With native delayed delivery the crowd waits {NATIVE.patience} times as long, "
        "so that all or most of it is published before it is due.",
    )


def _memory(waiting: Results, wire: Results) -> Sheet:
    depths = sorted({int(depth) for it in waiting.values() for depth in it["worker_mb"]})
    return Sheet(
        title="What waiting retries occupy",
        head=(
            "",
            *(f"worker, {depth:,} waiting" for depth in depths),
            "first task after kill -9",
            "broker, each",
            "message",
            "on the wire, each retry",
            "queues",
        ),
        rows=tuple(
            (
                _title(key),
                *(_mb(it["worker_mb"].get(str(depth))) for depth in depths),
                figure(it["recovery_seconds"], " s"),
                figure(it["broker_bytes"], " B"),
                figure(it["message_bytes"], " B"),
                figure(wire.get(key), " B"),
                f"{it['queues']}" + (f" + {it['celerys_queues']} of Celery's" if it["celerys_queues"] else ""),
            )
            for key, it in waiting.items()
        ),
        note="Celery's countdown has `worker_prefetch_multiplier = 0` here and where a crowd expires: "
        "with its default, an idle worker takes only a few of them per second.",
    )


def _fresh(rabbitmq: str, fresh: Results) -> Sheet:
    def cell(pair: Any) -> str:
        return f"{figure(pair[0])} / {figure(pair[1])} ms" if pair else f"not all ran within {PATIENCE_SECONDS:.0f} s"

    waiting = max((it["waiting"] for it in fresh.values()), default=0)
    return Sheet(
        title=f"How long new tasks take to a worker, RabbitMQ {rabbitmq}",
        head=("p50 / p99", "idle", f"while {waiting:,} retries wait", "times, in each round"),
        rows=tuple(
            (_title(key), cell(it["idle"]), cell(it["beside"]), ", ".join(map(figure, it["times"])) or NONE)
            for key, it in fresh.items()
        ),
    )


def _depth(waiting: Results) -> Sheet:
    depths = sorted({int(depth) for it in waiting.values() for depth in it["retry_ms"]})
    return Sheet(
        title="CPU of one more retry, worker and broker together",
        head=("", *(f"{depth:,} waiting" for depth in depths)),
        rows=tuple(
            (_title(key), *(figure(it["retry_ms"].get(str(depth)), " ms") for depth in depths))
            for key, it in waiting.items()
        ),
    )


def _start(start: Results) -> Sheet:
    return Sheet(
        title="From the start of a worker to its first task",
        head=("", "200 tasks and 30 delays, new broker", "the same again"),
        rows=tuple(
            (
                _title(key),
                figure(it["first"], " s"),
                figure(it["again"], " s"),
            )
            for key, it in start.items()
        ),
    )


def _growth(growth: Results) -> Sheet:
    counts = sorted({int(count) for it in growth.values() for count in it})

    def cell(rounds: Any) -> str:
        return f"{figure(typical(rounds, 'worker_ms'))} + {figure(typical(rounds, 'broker_ms'))} ms"

    return Sheet(
        title="CPU of one retry by number of work queues, worker and broker",
        head=("", *(f"{count} work queues" if count > 1 else "1 work queue" for count in counts), "times"),
        rows=tuple(
            (
                _title(key),
                *(cell(it.get(str(count))) for count in counts),
                figure(
                    in_turns(
                        lambda more, less: ratio(total_cpu(more), total_cpu(less)),
                        *(it.get(str(count)) for count in (counts[-1], counts[0])),
                    )
                ),
            )
            for key, it in growth.items()
        ),
        note="Plain tasks of Celery succeed; in the last row a worker may prefetch without a limit.",
    )


def _title(key: str) -> str:
    return BY_KEY[key].title if key in BY_KEY else "plain tasks of Celery"


def _mb(value: float | None) -> str:
    return NONE if value is None else f"{value:+.1f} MB"


def show(found: Results) -> None:
    """To the terminal."""
    console = Console()
    for sheet in sheets(found):
        table = Table(*sheet.head, title=sheet.title, title_justify="left")
        for row in sheet.rows:
            table.add_row(*row)
        console.print(table)
    for problem in found["about"]["passed over"]:
        console.print(f"passed over: {problem}")


def markdown(found: Results, *, plot: str) -> str:
    """For the page."""
    about = {name: value for name, value in found["about"].items() if name not in {"command", "passed over"}}
    parts = [
        "",
        f"`{found['about']['command']}`: " + ", ".join(f"{name} {value}" for name, value in about.items()) + ".",
        "",
        f"![The figures below as bars]({plot})",
        "",
    ]
    for sheet in sheets(found):
        parts += [f"### {sheet.title}", "", *_lines(sheet.head, sheet.rows), ""]
        if sheet.note:
            parts += [sheet.note, ""]
    if passed := found["about"]["passed over"]:
        parts += [f"Skipped: {'; '.join(passed)}.", ""]
    return "\n".join(parts) + "\n"


def _lines(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield "|" + "---|" * len(head)
    for row in rows:
        yield f"| {' | '.join(row)} |"


def write_into(page: Path, found: Results) -> None:
    """Put the figures between the marks of a page; the plot has its name."""
    plot = page.with_suffix(".png").name
    text = page.read_text(encoding="utf-8")
    head, _, rest = text.partition(BEGIN)
    tail = rest.partition(END)[2]
    page.write_text(f"{head}{BEGIN}{markdown(found, plot=plot)}{END}{tail}", encoding="utf-8")
