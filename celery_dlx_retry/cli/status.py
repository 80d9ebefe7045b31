"""``celery dlx status`` and ``celery dlx watch``: what works, waits, is dead, and when the next one wakes up."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from celery_dlx_retry.broker.queue_status import states
from celery_dlx_retry.cli.context import management_option, not_there, note, queues_option, targeting
from celery_dlx_retry.cli.output import counted, drawn, echo, is_terminal, json_line, json_option, plain, table, time_of
from celery_dlx_retry.cli.parameters import DAY_SECONDS, Seconds

if TYPE_CHECKING:
    from celery_dlx_retry.broker.queue_status import QueueState
    from celery_dlx_retry.cli.context import Target
    from celery_dlx_retry.topology.names import Lane

_COLUMNS = ("role", "queue", "ready", "unacked", "consumers", "in/s", "out/s", "oldest", "next")
_NAMES = ("queue",)
# Without the HTTP API lanes are found by asking for each possible one: not every second.
_LANES_SECONDS = 60.0


@click.command()
@queues_option
@management_option
@click.option("--all", "everything", is_flag=True, help="Also lanes in which nothing waits.")
@json_option
@click.pass_context
def status(
    ctx: click.Context, queue_names: str | None, management_url: str | None, *, everything: bool, as_json: bool
) -> None:
    """Show work queues, lanes, dead letters and orphans. The messages stay where they are."""
    with targeting(ctx, queue_names, management_url) as target:
        found = _states(target, target.lanes(), only_named=bool(queue_names))
    shown = _shown(found, everything=everything)
    if as_json:
        for state in shown:
            json_line(asdict(state))
    else:
        table(_COLUMNS, _rows(shown), whole=_NAMES)
        echo(_summary(found))
    looked_into = [state.queue for state in found if state.role == "wait" and state.consumers]
    if looked_into:
        note(f"another command reads {', '.join(looked_into)}. Tasks that it holds are not counted.")
    if not target.management:
        unknown = "" if queue_names else ", nor queues that only a worker's -Q names: name them with -Q"
        note(f"unacked messages and rates are not known{unknown}. {target.no_management}")
    if queue_names and not_there([state.queue for state in found if state.role == "work" and not state.exists]):
        ctx.exit(1)


@click.command()
@queues_option
@management_option
@click.option("--all", "everything", is_flag=True, help="Also lanes in which nothing waits.")
@click.option(
    "--interval",
    type=Seconds(min=0.1, max=DAY_SECONDS),
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    help="Time between two looks.",
)
@json_option
@click.pass_context
def watch(  # noqa: PLR0913 - one per option
    ctx: click.Context,
    queue_names: str | None,
    management_url: str | None,
    *,
    everything: bool,
    interval: float,
    as_json: bool,
) -> None:
    """Show the status again and again, until Ctrl-C. It goes on while the broker is down."""
    with ExitStack() as stack:
        live = None if as_json or not is_terminal() else _live(stack)

        def show(found: list[QueueState]) -> None:
            shown = _shown(found, everything=everything)
            if as_json:
                for state in shown:
                    json_line({**asdict(state), "at_ms": _now_ms()})
            elif live is None:
                table(_COLUMNS, _rows(shown), whole=_NAMES)
                echo(_summary(found))
            else:
                live.update(drawn(_COLUMNS, _rows(shown), title=_summary(found), whole=_NAMES), refresh=True)

        try:
            while True:
                try:
                    with targeting(ctx, queue_names, management_url) as target:
                        _refresh(target, show, interval, only_named=bool(queue_names))
                except click.UsageError:  # noqa: PERF203 - a loop because of what is caught
                    raise
                except click.ClickException as problem:
                    if live is None:
                        echo(problem.format_message(), err=True)
                    else:
                        live.update(plain(problem.format_message()), refresh=True)
                    _wait(interval)
        except KeyboardInterrupt:
            return


def _refresh(target: Target, show: Any, interval: float, *, only_named: bool) -> None:
    lanes: list[Lane] = []
    known_until = 0.0
    while True:
        if target.management or time.monotonic() > known_until:
            lanes, known_until = target.lanes(), time.monotonic() + _LANES_SECONDS
        show(_states(target, lanes, only_named=only_named))
        _wait(interval)


def _states(target: Target, lanes: list[Lane], *, only_named: bool) -> list[QueueState]:
    return list(
        states(
            target.connection,
            target.names,
            work_queues={queue: target.types[queue.name] for queue in target.work_queues},
            lanes=lanes,
            others=() if only_named else target.others(),
            management=target.management,
        )
    )


def _shown(found: list[QueueState], *, everything: bool) -> list[QueueState]:
    """The same in the table and in JSON: of lanes only those in which something waits, unless all are asked for.

    Something may also wait in one that looks empty, while somebody looks into it.
    """
    return [it for it in found if everything or it.role != "wait" or it.ready or it.unacked or it.consumers]


def _rows(shown: list[QueueState]) -> list[tuple[object, ...]]:
    return [
        (
            state.role,
            state.queue,
            state.ready if state.exists else "missing",
            state.unacked,
            state.consumers,
            _rate(state.in_per_second),
            _rate(state.out_per_second),
            state.oldest_ms and time_of(state.oldest_ms),
            state.next_ms and time_of(state.next_ms),
        )
        for state in shown
    ]


def _summary(found: list[QueueState]) -> str:
    totals = {role: sum(it.ready for it in found if it.role == role) for role in ("work", "wait", "dead", "orphans")}
    due = min((state.next_ms for state in found if state.next_ms is not None), default=None)
    lanes = [state for state in found if state.role == "wait" and state.ready]
    text = (
        f"{totals['work']} to work, {totals['wait']} waiting in {counted(len(lanes), 'lane')}, {totals['dead']} dead, "
        f"{counted(totals['orphans'], 'orphan')}"
    )
    if due is None:
        return text
    known = "" if all(state.next_ms is not None for state in lanes) else "known "
    return f"{text}; next {known}wake-up {time_of(due)} UTC, in {max(0, due - _now_ms()) / 1000:.0f} s"


def _rate(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def _live(stack: ExitStack) -> Any:
    from rich.live import Live  # noqa: PLC0415 - an extra

    return stack.enter_context(Live(auto_refresh=False))


def _wait(seconds: float) -> None:
    time.sleep(seconds)  # noqa: TID251 - the pace that was asked for


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
