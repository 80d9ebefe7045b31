"""``celery dlx dead purge``: delete dead letters for good."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from celery_dlx_retry.cli.context import app_of, report_missing
from celery_dlx_retry.cli.dead.options import all_option, require_explicit, selects
from celery_dlx_retry.cli.dead.reporting import Reporter, describe_queues
from celery_dlx_retry.cli.errors import changes_something
from celery_dlx_retry.cli.output import confirm, echo, json_line, json_option, yes_option
from celery_dlx_retry.cli.parameters import TEXT
from celery_dlx_retry.operations.purge import Purge

if TYPE_CHECKING:
    from celery_dlx_retry.operations.select_letters import LetterQuery


@click.command("purge")
@click.argument("task_ids", nargs=-1, type=TEXT)
@selects
@all_option
@yes_option
@json_option
def purge_dead(ctx: click.Context, query: LetterQuery, *, yes: bool, as_json: bool) -> None:
    """Delete dead letters for good. Export them first if you may want them back."""
    require_explicit(query)
    reporter = Reporter()
    with app_of(ctx) as app, Purge(app, query, monitor=reporter.monitor) as purge:
        if not yes:
            with reporter.bar("reading"):
                plan = purge.plan()
            if plan.total:
                confirm(f"Delete {describe_queues(plan.per_queue)} for good?")
        changes_something()
        with reporter.bar("deleting"):
            result = purge.run()
    if as_json:
        json_line({"purged": result.purged, "not_found": [*result.missing_ids, *result.absent_groups]})
    else:
        echo(f"{result.purged} purged")
    if report_missing(task_id=result.missing_ids, group=result.absent_groups):
        ctx.exit(1)
