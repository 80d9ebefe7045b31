"""``celery dlx dead purge``: delete dead letters for good."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from typing import TYPE_CHECKING

import click

from celery_dlx_retry.broker.dead_letter_moves import discard
from celery_dlx_retry.cli.audit import audit
from celery_dlx_retry.cli.context import connection_of
from celery_dlx_retry.cli.dead.known import KnownLetters
from celery_dlx_retry.cli.dead.selection import described, selects
from celery_dlx_retry.cli.errors import changes_something, one_sentence
from celery_dlx_retry.cli.output import confirm, echo, json_line, json_option, progress, yes_option
from celery_dlx_retry.cli.parameters import TEXT

if TYPE_CHECKING:
    from celery_dlx_retry.cli.dead.selection import Selection
    from celery_dlx_retry.deadletters.letter import DeadMessage


@click.command("purge")
@click.argument("task_ids", nargs=-1, type=TEXT)
@selects
@click.option("--all", "everything", is_flag=True, help="All of them, instead of ids or filters.")
@yes_option
@json_option
def purge_dead(ctx: click.Context, selection: Selection, *, everything: bool, yes: bool, as_json: bool) -> None:
    """Delete dead letters for good. Export them first if you may want them back."""
    selection.insist(everything=everything)
    selection.only_known = True
    purged = 0
    missing = set(selection.chosen.ids)
    with (
        one_sentence(ctx.obj.app),
        connection_of(ctx.obj.app) as connection,
        KnownLetters() as confirmed,
    ):
        if not yes:
            found: Counter[str] = Counter()
            with progress("reading", selection.total(connection)) as step:
                for letter in selection.letters(connection, step):
                    found[letter.queue] += 1
                    confirmed.add(letter)
            if found:
                confirm(f"Delete {described(found)} for good?")

        def wanted(letter: DeadMessage) -> bool:
            """What has died since is none of those that somebody agreed to."""
            return selection.wanted(letter) and (yes or confirmed.takes(letter))

        queues = selection.queues(connection)
        changes_something()
        try:
            with progress("deleting", sum(queues.values())) as step:
                for queue in queues:
                    with selection.passing_over(queue), closing(discard(connection, queue, wanted=wanted)) as discarded:
                        for letter in discarded:
                            step()
                            purged += 1
                            missing.discard(letter.record.task_id)
        finally:
            audit("dead purge", purged=purged, queues=",".join(queues))
    if as_json:
        json_line({"purged": purged, "not_found": [*sorted(missing), *selection.absent_groups]})
    else:
        echo(f"{purged} purged")
    if selection.tells_missing(missing):
        ctx.exit(1)
