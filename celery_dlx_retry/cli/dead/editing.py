"""``celery dlx dead edit``: other arguments for a dead letter, and the first ones back."""

from __future__ import annotations

import inspect
import json
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click
from celery.utils.saferepr import saferepr

from celery_dlx_retry.app.context import context_of
from celery_dlx_retry.broker.dead_letter_moves import rewrite
from celery_dlx_retry.cli.audit import audit
from celery_dlx_retry.cli.context import connection_of, management_option
from celery_dlx_retry.cli.dead.editor import in_editor
from celery_dlx_retry.cli.dead.selection import Selection
from celery_dlx_retry.cli.errors import changes_something, one_sentence
from celery_dlx_retry.cli.output import confirm, json_line, json_option, printable, yes_option
from celery_dlx_retry.cli.parameters import QUEUE_NAME, TEXT
from celery_dlx_retry.deadletters.filter import LetterFilter
from celery_dlx_retry.errors import ArgumentsDoNotFit
from celery_dlx_retry.values.escaping import readable_json
from celery_dlx_retry.wire.task_body import edited, payload_of, restored

if TYPE_CHECKING:
    from celery_dlx_retry.deadletters.letter import DeadMessage
    from celery_dlx_retry.wire.message import Message
    from celery_dlx_retry.wire.task_body import Payload


@click.command("edit")
@click.argument("task_id", type=TEXT)
@click.option(
    "--queue", "-q", "queues", multiple=True, type=QUEUE_NAME, metavar="NAME", help="Look only into this work queue's."
)
@management_option
@click.option("--set", "changes", multiple=True, metavar="NAME=JSON", help="This argument, instead of an editor.")
@click.option("--undo", is_flag=True, help="Bring back what it was before the first edit.")
@click.option("--no-check", is_flag=True, help="Do not ask the task's signature, which may not be known here.")
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
    app = ctx.obj.app
    chosen = LetterFilter(ids=frozenset([task_id]))
    selection = Selection(app=app, named=queues, chosen=chosen, management_url=management_url)
    with one_sentence(app):
        found = _found(app, selection)
        if found is None:
            click.echo(f"No dead letter has the task id {printable(task_id)}.", err=True)
            ctx.exit(1)
        if undo:
            changed = restored(found.message)
        else:
            payload = payload_of(found.message)
            wanted = _set(app, found, payload, changes) if changes else _in_editor(payload)
            if wanted == payload:
                if as_json:
                    json_line({"task_id": task_id, "queue": found.queue, "edited": 0})
                else:
                    click.echo("Nothing was changed.")
                return
            if not no_check:
                _check(app, found, wanted)
            changed = edited(found.message, wanted, argsrepr=saferepr(wanted.args), kwargsrepr=saferepr(wanted.kwargs))
        if not yes:
            confirm(f"Change {task_id} in {found.queue}?")
        changes_something()
        count = _swap(app, found, changed)
    outcome = "restored" if undo else "edited"
    if as_json:
        json_line({"task_id": task_id, "queue": found.queue, outcome: count})
    else:
        gone = "Nothing was changed: the letter is gone, or another command has changed it."
        click.echo(f"{outcome} {printable(task_id)}" if count else gone)
    if not count:
        ctx.exit(1)


def _found(app: Any, selection: Selection) -> DeadMessage | None:
    with connection_of(app) as connection:
        letters = list(selection.letters(connection))
    return letters[0] if letters else None


def _swap(app: Any, found: DeadMessage, changed: Message) -> int:
    """Whoever edits takes minutes, and holds nothing meanwhile: what changed since is left alone."""
    count = 0
    publisher = context_of(app).publisher

    def is_the_same(letter: DeadMessage) -> bool:
        return letter.record == found.record and letter.message.body == found.message.body

    try:
        with (
            connection_of(app) as connection,
            closing(
                rewrite(
                    connection,
                    found.queue,
                    names=context_of(app).names,
                    publisher=publisher,
                    wanted=is_the_same,
                    change=lambda _: changed,
                )
            ) as rewritten,
        ):
            count = sum(1 for _ in rewritten)
    finally:
        audit("dead edit", edited=count, task_id=found.record.task_id, queue=found.queue)
    return count


def _in_editor(payload: Payload) -> Payload:
    written = in_editor(readable_json({"args": payload.args, "kwargs": payload.kwargs}) + "\n")
    try:
        found = json.loads(written)
        args, kwargs = found["args"], found["kwargs"]
    except (ValueError, TypeError, KeyError, RecursionError) as exc:
        raise click.ClickException('What you wrote is not {"args": […], "kwargs": {…}}. Nothing was changed.') from exc
    if not isinstance(args, list) or not isinstance(kwargs, dict):
        raise click.ClickException("args must be a list, and kwargs an object. Nothing was changed.")
    return replace(payload, args=args, kwargs=kwargs)


def _set(app: Any, found: DeadMessage, payload: Payload, changes: tuple[str, ...]) -> Payload:
    args, kwargs = list(payload.args), dict(payload.kwargs)
    positions = _positions(app, found)
    for change in changes:
        name, equals, written = change.partition("=")
        try:
            value = json.loads(written)
        except (ValueError, RecursionError) as exc:
            raise click.UsageError(
                f"--set {name}{equals}…: after the = there must be JSON, as in name='\"text\"'."
            ) from exc
        position = int(name[:9]) if name.isdecimal() else positions.get(name)
        if position is not None and name not in kwargs and position < len(args):
            args[position] = value
        elif name.isdecimal():
            raise click.UsageError(f"--set {name}=…: it has {len(args)} positional arguments, counted from 0.")
        else:
            kwargs[name] = value
    return replace(payload, args=args, kwargs=kwargs)


def _positions(app: Any, found: DeadMessage) -> dict[str, int]:
    """Where the task takes each argument, by its name; not known of a task that is not registered here."""
    task = app.tasks.get(found.record.task)
    if task is None:
        return {}
    parameters = inspect.signature(task.run).parameters.values()
    by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return {one.name: number for number, one in enumerate(parameters) if one.kind in by_position}


def _check(app: Any, found: DeadMessage, payload: Payload) -> None:
    name = found.record.task
    task = app.tasks.get(name)
    if task is None:
        problem = "this app does not know the task, so they cannot be checked; --no-check writes them unchecked"
        raise ArgumentsDoNotFit(task=name, problem=problem)
    try:
        inspect.signature(task.run).bind(*payload.args, **payload.kwargs)
    except TypeError as exc:
        raise ArgumentsDoNotFit(task=name, problem=str(exc)) from exc
