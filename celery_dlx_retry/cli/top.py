"""``celery dlx top``, which is also ``celery dlx`` alone, and ``watch``: the one screen."""

from __future__ import annotations

import shutil
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from celery_dlx_retry.cli.context import DAY_SECONDS, Seconds, app_of, management_option, note, queues_option
from celery_dlx_retry.cli.live import Live, is_interactive, show_live
from celery_dlx_retry.cli.output import echo, json_line, json_option, monitored
from celery_dlx_retry.cli.screen import screen
from celery_dlx_retry.errors import Forbidden
from celery_dlx_retry.operations.app_queues import work_queues_of
from celery_dlx_retry.operations.overview import Overview, OverviewReader, read_letters
from celery_dlx_retry.operations.session import open_session

if TYPE_CHECKING:
    from collections.abc import Callable

# Reading so many letters takes about a second.
_SOON = 5_000
_WIDE = 200

_lanes_option = click.option("--lanes", is_flag=True, help="Also one line for each lane in which tasks wait.")
_quick_option = click.option("--quick", is_flag=True, help="Do not read the dead letters: show no groups.")


@click.command()
@queues_option
@management_option
@_lanes_option
@_quick_option
@json_option
@click.pass_context
def top(  # noqa: PLR0913 - one per option
    ctx: click.Context,
    queue_names: tuple[str, ...] | None,
    management_url: str | None,
    *,
    lanes: bool,
    quick: bool,
    as_json: bool,
) -> None:
    """Show what is wrong now, the work queues, and what fails most. The messages stay in their queues."""
    queues = queue_names or ()
    with app_of(ctx) as app, open_session(app, queues=queues, management_url=management_url) as session:
        reader = OverviewReader(session)
        found = reader.read()
        is_slow = not quick and not as_json and sys.stdout.isatty() and found.dead > _SOON
        if is_slow:
            _print(found, lanes=False, message=f"Reading {found.dead} dead letters; --quick does not …")
        if not quick:
            try:
                with monitored("Reading dead letters") as monitor:
                    letters = read_letters(app, queues=queues, management_url=management_url, monitor=monitor)
                found = reader.with_letters(letters)
            except Forbidden as problem:
                note(f"the groups are not known. {problem}")
    if as_json:
        json_line(asdict(found))
        return
    if is_slow:
        echo()
    _print(found, lanes=lanes)
    if found.no_management:
        note(f"running tasks, and queues that only a worker's -Q names, are not known. {found.no_management}")


@click.command()
@queues_option
@management_option
@_lanes_option
@_quick_option
@click.option(
    "--interval",
    type=Seconds(min=0.1, max=DAY_SECONDS),
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    help="Time between two updates.",
)
@json_option
@click.pass_context
def watch(  # noqa: PLR0913 - one per option
    ctx: click.Context,
    queue_names: tuple[str, ...] | None,
    management_url: str | None,
    *,
    lanes: bool,
    quick: bool,
    interval: float,
    as_json: bool,
) -> None:
    """Show the same live: q quits, ? shows the keys. It goes on while the broker is down."""
    with app_of(ctx) as app:
        work_queues_of(app, queue_names or ())  # a wrong name or another broker is an error now
        live = Live(app, queues=queue_names or (), management_url=management_url, interval=interval, quick=quick)
        live.start()
        try:
            if is_interactive() and not as_json:
                show_live(live, lanes=lanes)
            else:
                _print_again(live, _json if as_json else lambda found: _print(found, lanes=lanes))
        except KeyboardInterrupt:
            return
        finally:
            live.stop()


def _print_again(live: Live, show: Callable[[Overview], None]) -> None:
    """Print each reading, until Ctrl-C."""
    while True:
        found, problem = live.next()
        if problem:
            echo(problem, err=True)
        elif found is not None:
            show(found)
            sys.stdout.flush()


def _json(found: Overview) -> None:
    json_line(asdict(found))


def _print(found: Overview, *, lanes: bool, message: str = "") -> None:
    size = shutil.get_terminal_size(fallback=(_WIDE, 0))
    is_terminal = sys.stdout.isatty()
    height = max(size.lines - 1, 0) or None if is_terminal else None
    for line in screen(found, width=size.columns, height=height, lanes=lanes, note=message):
        click.echo(str(line))
