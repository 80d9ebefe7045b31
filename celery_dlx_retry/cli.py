"""The command line: ``celery dlx …`` and our flags of ``celery worker``.

The entry point ``celery.commands`` loads this module whenever ``celery`` starts, so that the flags are there before
the project's tasks are.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import click
from amqp.exceptions import AMQPError
from celery.bin.base import CeleryOption
from celery.bin.worker import worker
from kombu.exceptions import KombuError

from celery_dlx_retry.broker.deadletters import browse, replay
from celery_dlx_retry.errors import DLXError
from celery_dlx_retry.worker.runtime import runtime_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_dlx_retry.broker.deadletters import DeadMessage

_GROUP = "DLX Retry Options"

worker.params.extend(
    (
        CeleryOption(
            ("--dlx-prefix",),
            help_group=_GROUP,
            metavar="NAME",
            help="First part of every broker name that we make; overrules dlx_prefix.",
        ),
        CeleryOption(
            ("--dlx-queue-type",),
            help_group=_GROUP,
            type=click.Choice(["auto", "classic", "quorum"]),
            help="Type of lanes and dead-letter queues; overrules dlx_queue_type.",
        ),
        CeleryOption(
            ("--dlx-declare/--dlx-check-only",),
            help_group=_GROUP,
            default=None,
            help="Declare what is missing on the broker, or only check that it is there; overrules dlx_declare.",
        ),
        CeleryOption(
            ("--dlx-confirm-timeout",),
            help_group=_GROUP,
            type=click.FloatRange(min=0, min_open=True),
            metavar="SECONDS",
            help="How long a publish may wait for the broker's confirm; overrules dlx_confirm_timeout.",
        ),
        CeleryOption(
            ("--dlx-require-rabbitmq",),
            help_group=_GROUP,
            is_flag=True,
            default=None,
            help="Refuse to start on any other broker; overrules dlx_require_rabbitmq.",
        ),
    )
)


@click.group()
def dlx() -> None:
    """See and repair what DLXRetryTask keeps in the broker."""


@dlx.group()
def dead() -> None:
    """Dead letters."""


_queue_option = click.option(
    "--queue", "-q", "work_queue", default=None, help="Work queue; by default the app's task_default_queue."
)


@dead.command("list")
@_queue_option
@click.option("--limit", type=click.IntRange(min=1), default=100, show_default=True, help="No more than this many.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
@click.pass_context
def list_dead(ctx: click.Context, work_queue: str | None, limit: int, *, as_json: bool) -> None:
    """Show dead letters, oldest first; they stay where they are."""
    app = ctx.obj.app
    count = 0
    with _one_sentence(), app.connection_for_read() as connection:
        # All of them, also past the limit: a quorum queue puts what fewer looks took behind what more looks took.
        for count, letter in enumerate(browse(connection, _dead_letter_queue(app, work_queue)), start=1):
            if count <= limit:
                click.echo(_json_line(letter) if as_json else _text_line(letter))
    if not as_json:
        more = f", {limit} shown" if count > limit else ""
        click.echo(f"{count} dead {'letter' if count == 1 else 'letters'}{more}")


@dead.command("replay")
@click.argument("task_ids", nargs=-1)
@_queue_option
@click.option("--all", "everything", is_flag=True, help="All of them, instead of the task ids given.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.pass_context
def replay_dead(
    ctx: click.Context, task_ids: tuple[str, ...], work_queue: str | None, *, everything: bool, yes: bool
) -> None:
    """Put dead letters back on the work queues that they came from."""
    if bool(task_ids) == everything:
        raise click.UsageError("Give task ids, or --all.")
    app = ctx.obj.app
    queue = _dead_letter_queue(app, work_queue)
    if not yes:
        what = "all dead letters" if everything else f"{len(task_ids)} dead letters"
        click.confirm(f"Replay {what} of {queue}?", abort=True)
    replayed: list[str] = []
    kept: list[str] = []
    with _one_sentence(), app.connection_for_read() as connection:
        publisher = runtime_of(app).publisher
        for letter, problem in replay(
            connection, queue, publisher=publisher, wanted=lambda it: everything or it.record.task_id in task_ids
        ):
            (replayed if problem is None else kept).append(letter.record.task_id)
            click.echo(
                _printable(
                    f"replayed {letter.record.task_id} to {letter.record.queue}"
                    if problem is None
                    else f"kept {letter.record.task_id}: {problem}"
                )
            )
    click.echo(f"{len(replayed)} replayed" + (f", {len(kept)} kept" if kept else ""))
    missing = set(task_ids).difference(replayed, kept)
    if missing:
        click.echo(f"{len(missing)} not found in {queue}", err=True)
    if missing or kept:
        ctx.exit(1)


@contextmanager
def _one_sentence() -> Iterator[None]:
    """No traceback for a broker that is down or a setting that is wrong."""
    try:
        yield
    except DLXError as exc:
        raise click.ClickException(str(exc)) from exc
    except (AMQPError, KombuError, OSError) as exc:
        raise click.ClickException(f"The broker cannot be reached: {exc}.") from exc


def _dead_letter_queue(app: Any, work_queue: str | None) -> str:
    with _one_sentence():
        return runtime_of(app).names.dead_letters(work_queue or app.conf.task_default_queue)


def _text_line(letter: DeadMessage) -> str:
    record = letter.record
    waits = " ".join(f"{failure.delay_ms / 1000:g}s" for failure in letter.history if failure.delay_ms is not None)
    error = f"{record.error_type}: {record.error}".strip(": ").splitlines()
    lines = (
        f"{_time(record.died_at_ms)}  {record.reason!s:<12} {record.task} {record.task_id}",
        f"    {error[0] if error else '-'}",
        f"    attempts {record.attempts}, waited {waits or '-'}, queue {record.queue}, worker {record.worker or '-'}",
    )
    return "\n".join(_printable(line) for line in lines)


def _printable(text: str) -> str:
    """What anybody put into a message may not steer a terminal."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)


def _json_line(letter: DeadMessage) -> str:
    return json.dumps(
        {
            **asdict(letter.record),
            "reason": str(letter.record.reason),
            "history": [asdict(failure) for failure in letter.history],
            "replays": letter.replays,
        }
    )


def _time(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, timezone.utc).strftime("%Y-%m-%d %H:%M:%S") if at_ms else "?"
