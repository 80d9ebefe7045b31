"""``celery dlx dead …``: the dead letters."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from celery_dlx_retry.broker.deadletters import browse, replay
from celery_dlx_retry.cli.output import json_option, one_sentence, printable, time_of, yes_option
from celery_dlx_retry.worker.runtime import runtime_of

if TYPE_CHECKING:
    from celery_dlx_retry.broker.deadletters import DeadMessage


@click.group()
def dead() -> None:
    """Dead letters."""


_queue_option = click.option(
    "--queue", "-q", "work_queue", default=None, help="Work queue; by default the app's task_default_queue."
)


@dead.command("list")
@_queue_option
@click.option("--limit", type=click.IntRange(min=1), default=100, show_default=True, help="No more than this many.")
@json_option
@click.pass_context
def list_dead(ctx: click.Context, work_queue: str | None, limit: int, *, as_json: bool) -> None:
    """Show dead letters, oldest first; they stay where they are."""
    app = ctx.obj.app
    count = 0
    with one_sentence(), app.connection_for_read() as connection:
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
@yes_option
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
    with one_sentence(), app.connection_for_read() as connection:
        publisher = runtime_of(app).publisher
        for letter, problem in replay(
            connection, queue, publisher=publisher, wanted=lambda it: everything or it.record.task_id in task_ids
        ):
            (replayed if problem is None else kept).append(letter.record.task_id)
            click.echo(
                printable(
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


def _dead_letter_queue(app: Any, work_queue: str | None) -> str:
    with one_sentence():
        return runtime_of(app).names.dead_letters(work_queue or app.conf.task_default_queue)


def _text_line(letter: DeadMessage) -> str:
    record = letter.record
    waits = " ".join(f"{failure.delay_ms / 1000:g}s" for failure in letter.history if failure.delay_ms is not None)
    error = f"{record.error_type}: {record.error}".strip(": ").splitlines()
    lines = (
        f"{time_of(record.died_at_ms)}  {record.reason!s:<12} {record.task} {record.task_id}",
        f"    {error[0] if error else '-'}",
        f"    attempts {record.attempts}, waited {waits or '-'}, queue {record.queue}, worker {record.worker or '-'}",
    )
    return "\n".join(printable(line) for line in lines)


def _json_line(letter: DeadMessage) -> str:
    return json.dumps(
        {
            **asdict(letter.record),
            "reason": str(letter.record.reason),
            "history": [asdict(failure) for failure in letter.history],
            "replays": letter.replays,
        }
    )
