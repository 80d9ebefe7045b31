"""The command of a chaos run, for any way to start a broker."""

from __future__ import annotations

import json
import random
import secrets
import signal
import sys
import time
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TextIO, get_args

import click

from celery_dlx_retry.broker.connection import BROKER_ERRORS
from celery_dlx_retry.errors import DLXError, NoBroker
from celery_dlx_retry.testing.chaos.breaks import Break, Ways, break_by_command, break_node
from celery_dlx_retry.testing.chaos.report import Report, delete
from celery_dlx_retry.testing.chaos.run import Plan, Pool, Run
from celery_dlx_retry.testing.rabbitmq import named, provide
from celery_dlx_retry.testing.sandbox import WayFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from celery_dlx_retry.settings import QueueType
    from celery_dlx_retry.testing.broker import RabbitMQ


INTERRUPTED = 130

LINE_SECONDS = 5.0


@click.command(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.option("--broker", "url", metavar="URL", help="A RabbitMQ of yours; without it one is started, and removed.")
@click.option("--tasks", type=click.IntRange(min=1), default=10_000, help="How many tasks go in.")
@click.option("--workers", type=click.IntRange(min=1), default=2, help="How many workers run.")
@click.option("--concurrency", type=click.IntRange(min=1), default=4, help="Pool processes, or threads, of each.")
@click.option(
    "--pool",
    type=click.Choice(get_args(Pool)),
    default="prefork",
    help="Celery's pool. Only prefork runs tasks that kill their process, or overrun a time limit.",
)
@click.option("--kills", type=click.IntRange(min=0), default=50, help="How often a worker is killed with -9.")
@click.option("--restarts", type=click.IntRange(min=0), default=5, help="How often the broker, or a node, goes down.")
@click.option(
    "--ways",
    type=click.Choice(["both", "kill", "clean"]),
    help="How: kill -9, a clean stop, or in turn. [default: both; clean with classic lanes, which promise no more]",
)
@click.option("--restart-command", metavar="COMMAND", help="What restarts your broker; without it, it is not touched.")
@click.option("--queue-type", type=click.Choice(["classic", "quorum"]), help="Of the work queue. [default: classic]")
@click.option("--lanes", type=click.Choice(["classic", "quorum"]), default="quorum", help="dlx_queue_type.")
@click.option("--seconds", type=click.FloatRange(min=1, max=604_800), default=600.0, help="No longer than this.")
@click.option("--seed", type=int, help="Chooses tasks and breaks. [default: any]")
@click.option("--keep", type=click.Path(path_type=Path, file_okay=False), help="A folder for records and logs.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout; other lines on stderr.")
def main(**options: Any) -> None:
    """Break things while tasks run, and count how each task ended."""
    chaos(lambda say: provide(say=say), **options)


def chaos(  # noqa: PLR0913 - the options that are not part of the plan as they are
    start: Callable[[Callable[[str], None]], RabbitMQ],
    *,
    break_with: Callable[..., Break] = break_node,
    default_queue_type: QueueType = "classic",
    url: str | None,
    restarts: int,
    ways: Ways | None,
    restart_command: str | None,
    queue_type: QueueType | None,
    seed: int | None,
    keep: Path | None,
    as_json: bool,
    **planned: Any,
) -> NoReturn:
    """Run with these options and end the process. ``start`` gets a broker, and ``break_with`` breaks it."""
    if restart_command and not url:
        raise click.UsageError("--restart-command is for a --broker of yours.")
    plan = Plan(
        restarts=0 if url and not restart_command else restarts,
        queue_type=queue_type or default_queue_type,
        seed=secrets.randbelow(1_000_000) if seed is None else seed,
        **planned,
    )
    # After SIGTERM the run cleans up as after Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    view = View(sys.stderr if as_json else sys.stdout)
    try:
        with named(url, by="--broker") if url else start(view.say) as broker:
            view.say(f"RabbitMQ {broker.version} at {broker.shown_url} ({broker.origin}), seed {plan.seed}")
            break_broker: Break | None = None
            if restart_command:
                break_broker = partial(break_by_command, broker, restart_command)
            elif broker.can_restart:
                chance = random.Random(plan.seed)  # noqa: S311 - chaos is no secret
                ways = ways or ("clean" if plan.lanes == "classic" else "both")
                break_broker = break_with(broker, chance, ways=ways)
            if restarts and not plan.restarts:
                view.say("Your broker is not restarted: --restart-command would say how.")
            sys.exit(_run(plan, broker, break_broker, view, keep=keep, as_json=as_json))
    except (NoBroker, WayFailed) as exc:
        _fail(exc, status=2)
    except DLXError as exc:
        _fail(exc, status=1)
    except BROKER_ERRORS as exc:
        _fail(f"The broker cannot be reached: {exc}.", status=2)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def _run(  # noqa: PLR0913 - what main has found out
    plan: Plan, broker: RabbitMQ, break_broker: Break | None, view: View, *, keep: Path | None, as_json: bool
) -> int:
    if keep:
        keep.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        run = Run(plan, broker.url, break_broker, view, keep=keep)
        if not broker.can_restart:  # else it goes as a whole
            ids = [job.id for job in run.load]
            stack.callback(delete, broker.url, run.names, ids)
        stack.enter_context(closing(run))
        view.say(f"Work queue: {run.queue}")
        run.go()
        report = Report(run)
    view.table(report.rows())
    for line in report.losses():
        view.say(line)
    view.say(report.count.line)
    if as_json:
        click.echo(json.dumps(report.as_dict()))
    return 1 if report.count.lost else 0


def _fail(problem: object, *, status: int) -> NoReturn:
    click.echo(problem, err=True)
    sys.exit(status)


class View:
    """Lines of text; ``progress`` is cheap to call often."""

    def __init__(self, out: TextIO) -> None:
        self._out, self._last = out, 0.0

    def progress(self, line: str) -> None:
        """Show a line that is only about this moment; at most one every few seconds."""
        if time.monotonic() - self._last >= LINE_SECONDS:
            self._last = time.monotonic()
            self.say(line)

    def say(self, line: str) -> None:
        """Show a line."""
        click.echo(line, file=self._out)

    def table(self, rows: Mapping[str, object]) -> None:
        """Show names and values, aligned."""
        width = max(map(len, rows))
        for name, value in rows.items():
            self.say(f"{name:<{width}}  {value}")
