"""The options that choose dead letters, which most commands share."""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING, Any, TypeVar

import click

from celery_dlx_retry.cli.context import management_option
from celery_dlx_retry.cli.parameters import QUEUE_NAME, TEXT
from celery_dlx_retry.deadletters.filter import LetterFilter
from celery_dlx_retry.operations.operation_errors import InvalidRequest
from celery_dlx_retry.operations.select_letters import LetterQuery
from celery_dlx_retry.policy.reasons import Reason
from celery_dlx_retry.values.amounts import age_ms

if TYPE_CHECKING:
    from collections.abc import Callable

Command = TypeVar("Command", bound="Callable[..., Any]")
Parsed = TypeVar("Parsed")

all_option = click.option("--all", "everything", is_flag=True, help="All letters, in place of ids or filters.")


def _several(*names: str, kind: Any = TEXT, metavar: str | None = "NAME", text: str) -> Callable[[Command], Command]:
    """Return an option that can be given several times, with its type and its help text."""
    return click.option(*names, multiple=True, type=kind, metavar=metavar, help=text)


#: For the commands that are about one task id.
queue_option = _several("--queue", "-q", "queues", kind=QUEUE_NAME, text="Only dead letters of this work queue.")


def amount(
    parse: Callable[[str], Parsed | None], wanted: str
) -> Callable[[click.Context, click.Parameter, str | None], Parsed | None]:
    """Return the callback of an option that takes an age, a rate or a share."""

    def convert(_ctx: click.Context, _parameter: click.Parameter, value: str | None) -> Parsed | None:
        found = None if value is None else parse(value)
        if value is not None and found is None:
            raise click.BadParameter(f"{value!r:.80} is not {wanted}.")
        return found

    return convert


_age = amount(age_ms, "an age: 90s, 30m, 2h, 7d or 2w")
_OPTIONS = (
    _several(
        "--queue", "-q", "queues", kind=QUEUE_NAME, text="Only letters of this work queue, or of the orphans' queue."
    ),
    _several("--task", "tasks", text="Only letters of this task; * matches any text."),
    _several(
        "--reason",
        "reasons",
        kind=click.Choice([*map(str, Reason)]),
        metavar=None,
        text="Only letters with this reason.",
    ),
    _several(
        "--exception", "exceptions", metavar="TYPE", text="Only letters with this exception type, such as KeyError."
    ),
    click.option("--text", type=TEXT, help="Only letters with this text in error, traceback or arguments."),
    click.option(
        "--older-than", callback=_age, metavar="AGE", help="Only letters that died longer ago: 90s, 30m, 2h, 7d, 2w."
    ),
    click.option("--newer-than", callback=_age, metavar="AGE", help="Only letters that died within this time."),
    _several("--group", "groups", metavar="GROUP", text="Only letters of this group; see dead groups."),
    click.option("--unreadable", is_flag=True, help="Only letters with headers that cannot be read."),
    management_option,
)


def selects(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options that choose letters, and what they choose as ``query``."""

    @functools.wraps(command)
    def with_query(ctx: click.Context, **options: Any) -> None:
        now_ms = time.time_ns() // 1_000_000
        older, newer = options.pop("older_than"), options.pop("newer_than")
        chosen = LetterFilter(
            ids=frozenset(options.pop("task_ids", ())),
            tasks=options.pop("tasks"),
            reasons=options.pop("reasons"),
            exceptions=options.pop("exceptions"),
            groups=options.pop("groups"),
            text=options.pop("text") or "",
            unreadable=options.pop("unreadable"),
            died_before_ms=None if older is None else now_ms - older,
            died_after_ms=None if newer is None else now_ms - newer,
        )
        query = LetterQuery(
            queues=options.pop("queues"),
            filter=chosen,
            everything=options.pop("everything", False),
            management_url=options.pop("management_url"),
        )
        command(ctx, query=query, **options)

    decorated: Callable[..., None] = click.pass_context(with_query)
    for option in reversed(_OPTIONS):
        decorated = option(decorated)
    return decorated


def require_explicit(query: LetterQuery) -> None:
    """Raise a usage error unless a command that changes letters names them: by ids, filters or a queue, or --all."""
    try:
        query.require_explicit()
    except InvalidRequest as exc:
        if query.everything:
            sentence = "--all means all of them: give it without task ids and filters, or these alone."
        else:
            sentence = "Give task ids, filters, or --all."
        raise click.UsageError(sentence) from exc
