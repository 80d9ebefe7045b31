"""``celery dlx dead replay``: put dead letters back to work, all at once, at a rate, or a few first."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

import click

from celery_dlx_retry.cli.audit import audit
from celery_dlx_retry.cli.dead.canary import SUCCEEDED, UNKNOWN, Canaries
from celery_dlx_retry.cli.dead.replay_run import ReplayRun
from celery_dlx_retry.cli.dead.selection import amount, selects
from celery_dlx_retry.cli.output import json_option, one_sentence, printable, progress, yes_option
from celery_dlx_retry.core.amounts import Pace, rate_per_second, share

if TYPE_CHECKING:
    from fractions import Fraction

    from kombu.connection import Connection

    from celery_dlx_retry.cli.dead.selection import Selection


_rate = amount(rate_per_second, "a rate: 50/s, 600/m or 100/h")
_share = amount(share, "a share: 2%, from 0% to 100%")


@click.command("replay")
@click.argument("task_ids", nargs=-1)
@selects
@click.option("--all", "everything", is_flag=True, help="All of them, instead of ids or filters.")
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@click.option("--to-queue", metavar="NAME", help="To this work queue, instead of those that they came from.")
@click.option("--rate", callback=_rate, metavar="RATE", help="No faster than this: 50/s, 600/m, 100/h.")
@click.option("--detach", is_flag=True, help="Without links, chain, chord and result.")
@click.option("--canary", type=click.IntRange(min=1), metavar="N", help="So many first; the rest if they succeed.")
@click.option("--stop-on-fail", callback=_share, default="0%", metavar="SHARE", help="More failed canaries stop it.")
@click.option(
    "--canary-wait",
    type=click.FloatRange(min=0),
    default=60.0,
    metavar="SECONDS",
    show_default=True,
    help="How long to wait for what becomes of them.",
)
@click.option("--silence-is-success", is_flag=True, help="A canary that has not died by then has succeeded.")
@yes_option
@json_option
def replay_dead(  # noqa: PLR0913 - one per option
    ctx: click.Context,
    selection: Selection,
    *,
    to_queue: str | None,
    rate: Fraction | None,
    canary: int | None,
    stop_on_fail: Fraction,
    canary_wait: float,
    everything: bool,
    dry_run: bool,
    detach: bool,
    silence_is_success: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Put dead letters back on their work queues. Stopped in the middle? Run it again: it goes on."""
    if selection.is_everything != everything:
        raise click.UsageError("Give task ids, filters, or --all.")
    run = ReplayRun(selection, to_queue=to_queue, detach=detach, pace=Pace(rate) if rate else None, as_json=as_json)
    stopped = ""
    with one_sentence(), ctx.obj.app.connection_for_read() as connection:
        if dry_run or not yes:
            count = _plan(connection, selection, run, aloud=dry_run)
            if dry_run:
                _tell_missing(run)
                ctx.exit(1 if run.missing else 0)
            run.forget()
            if count:
                click.confirm(f"Replay {count} dead letters?", abort=True)
        try:
            if canary:
                judge = _Judge(most_failed=stop_on_fail, wait=canary_wait, silence_is_success=silence_is_success)
                stopped = judge(connection, run, selection, canary)
            if not stopped:
                with progress("replaying", selection.total(connection)) as step:
                    run.go(connection, step)
        finally:
            audit("dead replay", replayed=run.replayed, kept=run.kept, to=to_queue or "origin", detached=detach)
            _tell(run, stopped)
    if stopped or run.kept or run.missing:
        ctx.exit(1)


class _Judge:
    """Sends a few ahead and decides whether the rest may follow."""

    def __init__(self, *, most_failed: Fraction, wait: float, silence_is_success: bool) -> None:
        self._most_failed, self._wait, self._silence = most_failed, wait, silence_is_success

    def __call__(self, connection: Connection, run: ReplayRun, selection: Selection, canary: int) -> str:
        """Why the rest stays; empty if it may follow."""
        canaries = Canaries(selection.app, run.to_queue)
        letters = selection.letters(connection)
        canaries.remember(islice(letters, canary))
        letters.close()
        run.go(connection, only=canaries.ids)
        if not run.replayed:
            return ""
        outcomes = canaries.wait(connection, seconds=self._wait)
        good = outcomes[SUCCEEDED] + (outcomes[UNKNOWN] if self._silence else 0)
        bad = outcomes.total() - good
        told = ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items()))
        run.tell({"event": "canary", "outcomes": canaries.outcomes}, f"canary: {told}")
        if bad <= self._most_failed * outcomes.total():
            return ""
        if outcomes[UNKNOWN] and not self._silence:
            return (
                f"the canaries say {told} after {self._wait:g} s. What is not known has no stored result; "
                "wait longer with --canary-wait, or trust it with --silence-is-success"
            )
        return f"the canaries say {told}"


def _plan(connection: Connection, selection: Selection, run: ReplayRun, *, aloud: bool) -> int:
    count = 0
    with progress("reading", selection.total(connection)) as step:
        for letter in selection.letters(connection, step):
            count += 1
            run.note(letter)
            if aloud:
                run.say("would replay", letter)
    if aloud:
        run.tell({"event": "summary", "would_replay": count}, f"{count} would be replayed")
    for line in run.effects():
        click.echo(line, err=True)
    return count


def _tell(run: ReplayRun, stopped: str) -> None:
    facts = {"replayed": run.replayed, "kept": run.kept, "not_found": sorted(run.missing), "stopped": stopped}
    run.tell({"event": "summary", **facts}, f"{run.replayed} replayed" + (f", {run.kept} kept" if run.kept else ""))
    if stopped:
        click.echo(printable(f"Stopped: {stopped}. The rest is still dead."), err=True)
    if not stopped:
        _tell_missing(run)
    for line in run.effects():
        click.echo(line, err=True)


def _tell_missing(run: ReplayRun) -> None:
    if run.missing:
        click.echo(f"{len(run.missing)} not found", err=True)
