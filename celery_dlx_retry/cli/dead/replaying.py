"""``celery dlx dead replay``: put dead letters back to work, all at once, at a rate, or a few first."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from celery_dlx_retry.cli.context import COUNT, DAY_SECONDS, Seconds, app_of, queue_name, report_missing, text
from celery_dlx_retry.cli.dead.options import Reporter, all_option, amount, describe_queues, require_explicit, selects
from celery_dlx_retry.cli.errors import changes_something
from celery_dlx_retry.cli.output import confirm, echo, json_line, json_option, yes_option
from celery_dlx_retry.operations.canary import CanaryStop, CanaryTest
from celery_dlx_retry.operations.monitor import CanariesJudged, LetterKept, LetterPlanned, LetterReplayed, Notice
from celery_dlx_retry.operations.replay import Replay, ReplayPlan, ReplayResult
from celery_dlx_retry.values.amounts import rate_per_second, share

if TYPE_CHECKING:
    from collections.abc import Mapping
    from fractions import Fraction

    from celery_dlx_retry.deadletters.letter import DeadMessage
    from celery_dlx_retry.errors import DLXError
    from celery_dlx_retry.operations.select_letters import LetterQuery

_rate = amount(rate_per_second, "a rate: 50/s, 600/m or 100/h")
_share = amount(share, "a share: 2%, from 0% to 100%")

_EFFECTS = {
    "chord": "In a chord: {}. One that has counted a failure does not take it back.",
    "callbacks": "With links: {}. They are called after a success.",
    "errbacks": "With error links: {}. They are called again after another failure.",
    "chain": "In a chain: {}. It goes on after a success.",
    "unknown links": "Not readable here: {}. Whether there are links, a chain or a chord is not known.",
    "unreadable headers": "With headers that cannot be read: {}. They are sent without these headers.",
    "result": "With a result: {}. The stored result stays until the task ends again and stores a new one.",
}


@click.command("replay")
@click.argument("task_ids", nargs=-1, type=text)
@selects
@all_option
@click.option("--dry-run", is_flag=True, help="Print what would be done, and do nothing.")
@click.option(
    "--to-queue", type=queue_name, metavar="NAME", help="Send to this work queue, not to those that they came from."
)
@click.option("--rate", callback=_rate, metavar="RATE", help="At most so many: 50/s, 600/m, 100/h.")
@click.option("--detach", is_flag=True, help="Without links, chain, chord and result.")
@click.option("--canary", type=COUNT, metavar="N", help="Replay this many first, and the rest if they succeed.")
@click.option(
    "--stop-on-fail",
    callback=_share,
    default="0%",
    metavar="SHARE",
    help="Stop if more than this share of the canaries fails.",
)
@click.option(
    "--canary-wait",
    type=Seconds(min=0, max=7 * DAY_SECONDS),
    default=60.0,
    metavar="SECONDS",
    show_default=True,
    help="How long to wait for the outcome of the canaries.",
)
@click.option("--silence-is-success", is_flag=True, help="A canary that has not died by then has succeeded.")
@yes_option
@json_option
def replay_dead(  # noqa: PLR0913 - one per option
    ctx: click.Context,
    query: LetterQuery,
    *,
    to_queue: str | None,
    rate: Fraction | None,
    canary: int | None,
    stop_on_fail: Fraction,
    canary_wait: float,
    dry_run: bool,
    detach: bool,
    silence_is_success: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Put dead letters back on their work queues. If it was stopped, run it again: it continues."""
    require_explicit(query)
    test = _canary_test(
        ctx, canary, most_failed=stop_on_fail, wait_seconds=canary_wait, silence_is_success=silence_is_success
    )
    output = _Output(as_json=as_json, is_dry_run=dry_run)
    reporter = Reporter(output.on_notice)
    with (
        app_of(ctx) as app,
        Replay(
            app, query, to_queue=to_queue, detach=detach, per_second=rate, canary=test, monitor=reporter.monitor
        ) as replay,
    ):
        if dry_run or not yes:
            with reporter.bar("reading"):
                plan = replay.plan()
            output.plan(plan)
            if dry_run:
                is_missing = report_missing(task_id=plan.missing_ids, group=plan.absent_groups)
                ctx.exit(1 if is_missing or plan.kept else 0)
            if plan.total:
                confirm(_question(plan))
        changes_something()
        try:
            with reporter.bar("replaying"):
                replay.run()
        finally:
            result = replay.result
            output.summary(result, _why_stopped(result.stopped, canary_wait))
            report_missing(task_id=result.missing_ids, group=result.absent_groups)
    if result.stopped or result.kept or result.missing_ids or result.absent_groups:
        ctx.exit(1)


class _Output:
    """Prints one line for each letter, and a summary, in words or as JSON."""

    def __init__(self, *, as_json: bool, is_dry_run: bool) -> None:
        self._as_json, self._is_dry_run = as_json, is_dry_run

    def on_notice(self, notice: Notice) -> None:
        """Print what the replay has done, or would do."""
        if isinstance(notice, LetterReplayed):
            self._letter("replayed", notice.letter, notice.queue)
        elif isinstance(notice, LetterKept):
            self._letter("kept", notice.letter, notice.queue, notice.problem)
        elif isinstance(notice, LetterPlanned) and self._is_dry_run:
            event = "would replay" if notice.problem is None else "would keep"
            self._letter(event, notice.letter, notice.queue, notice.problem)
        elif isinstance(notice, CanariesJudged):
            counts = _counts(Counter(notice.outcomes.values()))
            self._line({"event": "canary", "outcomes": notice.outcomes}, f"canary: {counts}")

    def plan(self, plan: ReplayPlan) -> None:
        """Print how many letters would be replayed, on a dry run, and what else the replay does."""
        if self._is_dry_run:
            kept = f", {plan.kept} would be kept" if plan.kept else ""
            facts = {"event": "summary", "would_replay": plan.total, "would_keep": plan.kept}
            self._line(facts, f"{plan.total} would be replayed{kept}")
        _print_effects(plan.effects)

    def summary(self, result: ReplayResult, stopped: str) -> None:
        """Print how many letters were replayed, and why the rest was not."""
        not_found = [*result.missing_ids, *result.absent_groups]
        facts = {"replayed": result.replayed, "kept": result.kept, "not_found": not_found, "stopped": stopped}
        kept = f", {result.kept} kept" if result.kept else ""
        self._line({"event": "summary", **facts}, f"{result.replayed} replayed{kept}")
        if stopped:
            echo(f"Stopped: {stopped}. The rest is still dead.", err=True)
        _print_effects(result.effects)

    def _letter(self, event: str, letter: DeadMessage, queue: str, problem: DLXError | None = None) -> None:
        task_id = letter.record.task_id
        facts = {"event": event, "task_id": task_id, "task": letter.record.task, "queue": queue}
        if problem is not None:
            facts["problem"] = str(problem)
        self._line(facts, f"{event} {task_id} to {queue}" if problem is None else f"{event} {task_id}: {problem}")

    def _line(self, facts: Mapping[str, Any], text: str) -> None:
        if self._as_json:
            json_line(facts)
        else:
            echo(text)


def _canary_test(ctx: click.Context, count: int | None, **options: Any) -> CanaryTest | None:
    if count:
        return CanaryTest(count=count, **options)
    for name in ("stop_on_fail", "canary_wait", "silence_is_success"):
        if ctx.get_parameter_source(name) is not ParameterSource.DEFAULT:
            raise click.UsageError(f"--{name.replace('_', '-')} is about canaries: give it with --canary.")
    return None


def _question(plan: ReplayPlan) -> str:
    to = f" to {', '.join(sorted(plan.unknown_queues))}, which this app does not know" if plan.unknown_queues else ""
    kept = f" (and keep {plan.kept} whose work queue is not known)" if plan.kept else ""
    return f"Replay {describe_queues(plan.per_queue)}{to}{kept}?"


def _print_effects(effects: Mapping[str, int]) -> None:
    for name, sentence in _EFFECTS.items():
        if count := effects.get(name):
            click.echo(sentence.format(count), err=True)


def _why_stopped(stop: CanaryStop | None, wait_seconds: float) -> str:
    """Return a sentence without its end; empty if the rest followed the canaries."""
    if stop is None:
        return ""
    counts = _counts(stop.outcomes)
    return {
        "no canary": "none of them has a task id and a known work queue, so none can be a canary. Nothing was moved",
        "no results": (
            f"{stop.mute} of {stop.canaries} canaries store no result (ignore_result), so their success cannot be "
            "seen. Nothing was moved; say --silence-is-success to take their silence for it"
        ),
        "none replayed": "no canary could be replayed. The rest was not moved",
        "unknown outcomes": (
            f"the canaries say {counts} after {wait_seconds:g} s. What is not known has stored no result yet: it runs, "
            "or waits for a worker or its next retry. Wait longer with --canary-wait, or trust it with "
            "--silence-is-success"
        ),
        "bad outcomes": f"the canaries say {counts}",
        "cancelled": "the replay was cancelled",
    }[stop.reason]


def _counts(outcomes: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items()))
