"""``celery dlx dead replay``: put dead letters back to work, all at once, at a rate, or a few first."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from celery_dlx_retry.cli.audit import audit
from celery_dlx_retry.cli.context import connection_of
from celery_dlx_retry.cli.dead.canary import SUCCEEDED, UNKNOWN, Canaries
from celery_dlx_retry.cli.dead.known import KnownLetters
from celery_dlx_retry.cli.dead.replay_run import ReplayRun
from celery_dlx_retry.cli.dead.selection import amount, described, selects
from celery_dlx_retry.cli.dead.states import states_of
from celery_dlx_retry.cli.errors import changes_something, one_sentence
from celery_dlx_retry.cli.output import confirm, echo, json_option, progress, yes_option
from celery_dlx_retry.cli.parameters import COUNT, DAY_SECONDS, QUEUE_NAME, TEXT, Seconds
from celery_dlx_retry.errors import NoDestination
from celery_dlx_retry.values.amounts import Rate, rate_per_second, share

if TYPE_CHECKING:
    from fractions import Fraction

    from kombu.connection import Connection

    from celery_dlx_retry.cli.dead.selection import Selection
    from celery_dlx_retry.cli.dead.states import States


_rate = amount(rate_per_second, "a rate: 50/s, 600/m or 100/h")
_share = amount(share, "a share: 2%, from 0% to 100%")


@click.command("replay")
@click.argument("task_ids", nargs=-1, type=TEXT)
@selects
@click.option("--all", "everything", is_flag=True, help="All of them, instead of ids or filters.")
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@click.option(
    "--to-queue", type=QUEUE_NAME, metavar="NAME", help="To this work queue, instead of those that they came from."
)
@click.option("--rate", callback=_rate, metavar="RATE", help="No faster than this: 50/s, 600/m, 100/h.")
@click.option("--detach", is_flag=True, help="Without links, chain, chord and result.")
@click.option("--canary", type=COUNT, metavar="N", help="So many first; the rest if they succeed.")
@click.option("--stop-on-fail", callback=_share, default="0%", metavar="SHARE", help="More failed canaries stop it.")
@click.option(
    "--canary-wait",
    type=Seconds(min=0, max=7 * DAY_SECONDS),
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
    selection.insist(everything=everything)
    # Whoever gives an id means that one, wherever it lies.
    selection.only_known = not selection.chosen.ids
    _insist_on_canaries(ctx, canary)
    states = _states(selection, silence_is_success=silence_is_success) if canary else None
    run = ReplayRun(selection, to_queue=to_queue, detach=detach, pace=Rate(rate) if rate else None, as_json=as_json)
    stopped, has_read_all = "", False
    with (
        one_sentence(ctx.obj.app),
        connection_of(ctx.obj.app) as connection,
        KnownLetters() as confirmed,
    ):
        if dry_run or not yes:
            plan = _plan(connection, selection, run, confirmed, aloud=dry_run)
            if dry_run:
                ctx.exit(1 if selection.tells_missing(run.missing) or plan.kept else 0)
            run.forget()
            run.confirmed = confirmed
            if plan.found:
                confirm(plan.question)
        selection.queues(connection)  # as long as there are none, nothing was done that an audit could tell
        changes_something()
        try:
            if canary:
                judge = _Judge(
                    most_failed=stop_on_fail,
                    wait=canary_wait,
                    silence_is_success=silence_is_success,
                    states=states,
                )
                stopped = judge(connection, run, selection, canary)
            if not stopped:
                with progress("replaying", selection.total(connection)) as step:
                    run.go(connection, step)
                has_read_all = True
        finally:
            audit(
                "dead replay",
                replayed=run.replayed,
                kept=run.kept,
                queues=",".join(selection.named) or "all",
                chosen=selection.chosen.told,
                to=to_queue or "origin",
                detached=detach,
            )
            _tell(run, stopped, not_found=[*sorted(run.missing), *selection.absent_groups] if has_read_all else [])
            if has_read_all:
                selection.tells_missing(run.missing)
    if stopped or run.kept or run.missing or selection.absent_groups:
        ctx.exit(1)


def _states(selection: Selection, *, silence_is_success: bool) -> States | None:
    """Return how to ask for states; None if no success can be seen and silence means success, else a usage error."""
    states, why = states_of(selection.app)
    if why and not silence_is_success:
        raise click.UsageError(
            f"--canary has to see its canaries succeed, and cannot: {why}. Nothing was moved. Give the app a "
            "result_backend that can be asked (Redis, files, a database), or say --silence-is-success: a canary "
            "that has not died again within --canary-wait has then succeeded."
        )
    return states


class _Judge:
    """Sends a few ahead and decides whether the rest may follow."""

    def __init__(self, *, most_failed: Fraction, wait: float, silence_is_success: bool, states: States | None) -> None:
        self._most_failed, self._wait, self._silence = most_failed, wait, silence_is_success
        self._states = states

    def __call__(self, connection: Connection, run: ReplayRun, selection: Selection, canary: int) -> str:
        """Why the rest stays; empty if it may follow."""
        canaries = Canaries(selection.app, run.destination, self._states)
        count = 0
        for letter in selection.letters(connection):  # all are read, and keep their order
            count += 1
            if letter.record.task_id and len(canaries.ids) < canary:
                with suppress(NoDestination):
                    canaries.remember(letter)
        if count and not canaries.ids:
            return "none of them has a task id and a known work queue, so none can be a canary. Nothing was moved"
        if len(canaries.mute) > self._most_failed * len(canaries.ids) and not self._silence:
            return (
                f"{len(canaries.mute)} of {len(canaries.ids)} canaries store no result (ignore_result), so their "
                "success cannot be seen. Nothing was moved; say --silence-is-success to take their silence for it"
            )
        run.go(connection, only=canaries.ids)
        if not run.replayed:
            return "no canary could be replayed. The rest was not moved" if count else ""
        outcomes = canaries.wait(connection, seconds=self._wait)
        good = outcomes[SUCCEEDED] + (outcomes[UNKNOWN] if self._silence else 0)
        bad = outcomes.total() - good
        told = ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items()))
        run.tell({"event": "canary", "outcomes": canaries.outcomes}, f"canary: {told}")
        if bad <= self._most_failed * outcomes.total():
            return ""
        if outcomes[UNKNOWN] and not self._silence:
            return (
                f"the canaries say {told} after {self._wait:g} s. What is not known has stored no result yet: it runs, "
                "or waits for a worker or its next retry. Wait longer with --canary-wait, or trust it with "
                "--silence-is-success"
            )
        return f"the canaries say {told}"


def _insist_on_canaries(ctx: click.Context, canary: int | None) -> None:
    for name in ("stop_on_fail", "canary_wait", "silence_is_success"):
        if not canary and ctx.get_parameter_source(name) is not ParameterSource.DEFAULT:
            raise click.UsageError(f"--{name.replace('_', '-')} is about canaries: give it with --canary.")


@dataclass(slots=True)
class _Plan:
    """How many would be replayed out of which queue, and to where, if the app does not know that queue."""

    found: Counter[str] = field(default_factory=Counter)
    kept: int = 0
    strangers: set[str] = field(default_factory=set)

    @property
    def question(self) -> str:
        """Ask, and name the queues that the app does not know."""
        to = f" to {', '.join(sorted(self.strangers))}, which this app does not know" if self.strangers else ""
        kept = f" (and keep {self.kept} whose work queue is not known)" if self.kept else ""
        return f"Replay {described(self.found)}{to}{kept}?"


def _plan(
    connection: Connection, selection: Selection, run: ReplayRun, confirmed: KnownLetters, *, aloud: bool
) -> _Plan:
    plan = _Plan()
    with progress("reading", selection.total(connection)) as step:
        for letter in selection.letters(connection, step):
            confirmed.add(letter)
            try:
                queue = run.destination(letter)
            except NoDestination as problem:
                plan.kept += 1
                run.missing.discard(letter.record.task_id)
                if aloud:
                    run.say("would keep", letter, problem)
                continue
            plan.found[letter.queue] += 1
            if not run.destination.is_apps(queue):
                plan.strangers.add(queue)
            run.note(letter)
            if aloud:
                run.say("would replay", letter)
    if aloud:
        facts = {"would_replay": plan.found.total(), "would_keep": plan.kept}
        kept = f", {plan.kept} would be kept" if plan.kept else ""
        run.tell({"event": "summary", **facts}, f"{plan.found.total()} would be replayed{kept}")
    for line in run.effects():
        click.echo(line, err=True)
    return plan


def _tell(run: ReplayRun, stopped: str, *, not_found: list[str]) -> None:
    facts = {"replayed": run.replayed, "kept": run.kept, "not_found": not_found, "stopped": stopped}
    run.tell({"event": "summary", **facts}, f"{run.replayed} replayed" + (f", {run.kept} kept" if run.kept else ""))
    if stopped:
        echo(f"Stopped: {stopped}. The rest is still dead.", err=True)
    for line in run.effects():
        click.echo(line, err=True)
