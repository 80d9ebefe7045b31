"""``celery dlx dead edit``, ``purge`` and ``import``: change arguments, delete letters, put them back."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import IO, TYPE_CHECKING, Any

import click

from celery_dlx_retry.cli.context import MOST, app_of, management_option, queue_name, report_missing, text
from celery_dlx_retry.cli.dead.options import (
    Reporter,
    all_option,
    describe_queues,
    queue_option,
    require_explicit,
    selects,
)
from celery_dlx_retry.cli.errors import changes_something, ended_by_exceptions
from celery_dlx_retry.cli.output import confirm, echo, json_line, json_option, printable, yes_option
from celery_dlx_retry.operations.edit import find_letter, plan_edit, plan_restore, run_edit, set_arguments
from celery_dlx_retry.operations.operation_errors import InvalidRequest
from celery_dlx_retry.operations.purge import Purge
from celery_dlx_retry.operations.transfer import Import
from celery_dlx_retry.sentences import counted
from celery_dlx_retry.values.escaping import readable_json
from celery_dlx_retry.wire.task_body import Payload, payload_of

if TYPE_CHECKING:
    from celery_dlx_retry.deadletters.letter import DeadMessage
    from celery_dlx_retry.operations.select_letters import LetterQuery


@click.command("edit")
@click.argument("task_id", type=text)
@queue_option
@management_option
@click.option("--set", "changes", multiple=True, metavar="NAME=JSON", help="Set this argument, without an editor.")
@click.option("--undo", is_flag=True, help="Bring back the arguments from before the first edit.")
@click.option("--no-check", is_flag=True, help="Do not check the arguments against the task's signature.")
@yes_option
@json_option
@click.pass_context
def edit_dead(  # noqa: PLR0913 - one per option
    ctx: click.Context,
    task_id: str,
    queues: tuple[str, ...],
    management_url: str | None,
    changes: tuple[str, ...],
    *,
    undo: bool,
    no_check: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Change the arguments of a dead letter. The first ones are kept in its header; it stays dead."""
    if undo and changes:
        raise click.UsageError("Give --set or --undo, not both.")
    monitor = Reporter().monitor
    with app_of(ctx) as app:
        letter = find_letter(app, task_id, queues=queues, management_url=management_url, monitor=monitor)
        if letter is None:
            click.echo(f"No dead letter has the task id {printable(task_id)}.", err=True)
            ctx.exit(1)
        if undo:
            plan = plan_restore(letter)
        else:
            payload = _with_changes(app, letter, changes) if changes else _from_editor(payload_of(letter.message))
            plan = plan_edit(app, letter, payload, check=not no_check)
        if plan.changed is None:
            if as_json:
                json_line({"task_id": task_id, "queue": letter.queue, "edited": 0})
            else:
                click.echo("Nothing was changed.")
            return
        if not yes:
            confirm(f"Change {task_id} in {letter.queue}?")
        changes_something()
        count = run_edit(app, plan, monitor=monitor)
    outcome = "restored" if undo else "edited"
    if as_json:
        json_line({"task_id": task_id, "queue": letter.queue, outcome: count})
    else:
        gone = "Nothing was changed: the letter is gone, or another command has changed it."
        click.echo(f"{outcome} {printable(task_id)}" if count else gone)
    if not count:
        ctx.exit(1)


def _from_editor(payload: Payload) -> Payload:
    written = in_editor(readable_json({"args": payload.args, "kwargs": payload.kwargs}) + "\n")
    try:
        found = json.loads(written)
        args, kwargs = found["args"], found["kwargs"]
    except (ValueError, TypeError, KeyError, RecursionError) as exc:
        raise click.ClickException('What you wrote is not {"args": […], "kwargs": {…}}. Nothing was changed.') from exc
    if not isinstance(args, list) or not isinstance(kwargs, dict):
        raise click.ClickException("args must be a list, and kwargs an object. Nothing was changed.")
    return replace(payload, args=args, kwargs=kwargs)


def _with_changes(app: Any, letter: DeadMessage, changes: tuple[str, ...]) -> Payload:
    """Return the arguments of the letter with what --set changes."""
    values = {}
    for change in changes:
        name, equals, written = change.partition("=")
        try:
            values[name] = json.loads(written)
        except (ValueError, RecursionError) as exc:
            raise click.UsageError(
                f"--set {name}{equals}…: after the = there must be JSON, as in name='\"text\"'."
            ) from exc
    try:
        return set_arguments(app, letter, values)
    except InvalidRequest as exc:
        raise click.UsageError(f"--set {exc.name}=…: {exc.problem}") from exc


@click.command("purge")
@click.argument("task_ids", nargs=-1, type=text)
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
        not_found = [*result.missing_ids, *result.absent_groups]
        json_line({"purged": result.purged, "kept": result.kept, "not_found": not_found})
    else:
        kept = f"; {result.kept} kept: not selected, or dead since the question" if result.kept else ""
        echo(f"{result.purged} purged{kept}")
    if report_missing(task_id=result.missing_ids, group=result.absent_groups):
        ctx.exit(1)


def in_editor(text: str) -> str:
    """Return the text as the user saved it.

    The file is in a directory that only this user may enter. The directory is deleted when the editor ends, together
    with the copies that editors leave beside a file, also if SIGTERM or SIGHUP ends the command. SIGKILL leaves it.
    """
    with ended_by_exceptions(), TemporaryDirectory(prefix="celery-dlx-edit-", ignore_cleanup_errors=True) as folder:
        file = Path(folder, "arguments.json")
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as new:
            new.write(text)
        try:
            click.edit(filename=str(file))
        except ValueError as exc:  # of shlex
            raise click.UsageError(f"The editor cannot be started: EDITOR or VISUAL is not a command ({exc}).") from exc
        try:
            return file.read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as exc:
            raise click.ClickException("What the editor left cannot be read as UTF-8. Nothing was changed.") from exc


@click.command("import")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path, allow_dash=True))
@click.option(
    "--to-queue",
    type=queue_name,
    metavar="NAME",
    help="Put them into this queue, not into the dead-letter queues that they came from.",
)
@click.option(
    "--skip",
    type=click.IntRange(min=0, max=MOST),
    default=0,
    help="Skip this many lines, which an earlier run has imported.",
)
@click.option("--again", is_flag=True, help="Also import a letter if its queue has an edited version of it.")
@management_option
@yes_option
@json_option
@click.pass_context
def import_dead(  # noqa: PLR0913 - one per option
    ctx: click.Context,
    file: Path,
    to_queue: str | None,
    skip: int,
    management_url: str | None,
    *,
    again: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Put exported dead letters back into their queues. A dash reads them from the input."""
    if str(file) == "-" and not yes:
        raise click.UsageError("The letters come from the input, so that you could not answer: say --yes.")
    reporter = Reporter()
    with (
        app_of(ctx) as app,
        _rewindable(file) as lines,
        Import(
            app,
            lines,
            to_queue=to_queue,
            skip=skip,
            again=again,
            management_url=management_url,
            source=file.name,
            monitor=reporter.monitor,
        ) as letters,
    ):
        plan = letters.plan()
        if plan.total and not yes:
            confirm(f"Import {counted(plan.total, 'dead letter')} into {', '.join(sorted(plan.queues))}?")
        with reporter.bar("reading what is there"):
            letters.prepare()
        changes_something()
        try:
            with reporter.bar("importing"):
                letters.run()
        finally:
            result = letters.result
            if not result.is_complete:
                click.echo(f"{result.imported} imported; go on with --skip {result.lines_done}", err=True)
    if as_json:
        json_line({"imported": result.imported, "already_there": result.already_there, "edited": result.edited})
    else:
        there = f", {result.already_there} already there" if result.already_there else ""
        edited = f", {result.edited} there in an edited version (--again imports them, too)" if result.edited else ""
        click.echo(f"{result.imported} imported{there}{edited}")
    if result.edited:
        ctx.exit(1)


def _rewindable(file: Path) -> IO[bytes]:
    """Return a file that can be read twice: a copy, which no other process can open, if it is a pipe."""
    try:
        source: IO[bytes] = click.open_file(str(file), "rb")
        if source.seekable():
            return source
        copied = TemporaryFile()  # noqa: SIM115 - the caller closes it
        with source:
            shutil.copyfileobj(source, copied)
    except FileNotFoundError as exc:
        raise click.UsageError(f"There is no file {file}.") from exc
    except (OSError, ValueError) as exc:
        problem = exc.strerror if isinstance(exc, OSError) else exc
        raise click.UsageError(f"The file {file} cannot be read: {problem}.") from exc
    return copied
