"""``celery dlx dead show``: everything about one dead letter."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from celery_dlx_retry.cli.context import app_of, management_option
from celery_dlx_retry.cli.dead.options import queue_option
from celery_dlx_retry.cli.dead.reporting import Reporter
from celery_dlx_retry.cli.output import echo, json_line, json_option, seconds, time_of
from celery_dlx_retry.cli.parameters import TEXT
from celery_dlx_retry.deadletters.details import details_of
from celery_dlx_retry.deadletters.filter import LetterFilter
from celery_dlx_retry.operations.select_letters import LetterQuery, SelectedLetters
from celery_dlx_retry.values.escaping import json_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_dlx_retry.deadletters.letter import DeadMessage
    from celery_dlx_retry.wire.headers import Failure


@click.command("show")
@click.argument("task_id", type=TEXT)
@queue_option
@management_option
@click.option("--args", "with_args", is_flag=True, help="Show its arguments, too; a pickle is never opened.")
@json_option
@click.pass_context
def show_dead(  # noqa: PLR0913 - one per option
    ctx: click.Context,
    task_id: str,
    queues: tuple[str, ...],
    management_url: str | None,
    *,
    with_args: bool,
    as_json: bool,
) -> None:
    """Show everything about a dead letter. History, traceback, headers, and with --args its arguments."""
    reporter = Reporter()
    query = LetterQuery(queues=queues, filter=LetterFilter(ids=frozenset([task_id])), management_url=management_url)
    count = 0
    with app_of(ctx) as app, SelectedLetters(app, query, monitor=reporter.monitor) as letters, reporter.bar("reading"):
        for letter in letters:
            count += 1
            details = details_of(letter, with_arguments=with_args)
            if as_json:
                json_line(details)
            else:
                for line in _lines(letter, details):
                    echo(line)
    if not count:
        echo(f"No dead letter has the task id {task_id}.", err=True)
        ctx.exit(1)


def _lines(letter: DeadMessage, details: dict[str, Any]) -> Iterator[str]:
    record, message = letter.record, letter.message
    yield f"{record.task or '(no task)'} {record.task_id}"
    links = details["links"]
    for name, value in (
        ("reason", record.reason),
        ("error", f"{record.error_type}: {record.error}".strip(": ")),
        ("died", f"{time_of(record.died_at_ms)} on {record.worker or 'an unknown worker'}"),
        ("work queue", record.queue or "not known: replay it with --to-queue"),
        ("lies in", letter.queue),
        ("attempts", f"{record.attempts}, replayed {letter.replays} times before"),
        ("group", f"{letter.fingerprint.group}, {letter.fingerprint.error} at {letter.fingerprint.where}"),
        ("links", "not known: the body is not JSON" if links is None else ", ".join(links) or "none"),
        ("body", f"{len(message.body)} bytes of {message.content_type}, {message.content_encoding}"),
        ("edited", "yes; dead edit --undo brings the original back" if details["edited"] else "no"),
    ):
        yield f"  {name:<11} {' '.join(str(value).splitlines())}"
    yield "history"
    for failure in letter.history:
        then = f", waited {seconds(failure.delay_ms)}s" if failure.delay_ms is not None else ""
        if failure.rule:
            then += f", retry {failure.rule_retry} of the rule for {failure.rule}"
        yield f"  {time_of(failure.at_ms)}  {_when(failure)}: {failure.error}{then}"
    if not letter.history:
        yield "  none"
    for title in ("headers", "properties"):
        yield title
        for name, value in details[title].items():
            yield f"  {name}: {_text(value)}"
    if "arguments" in details:
        yield "arguments"
        for name, value in details["arguments"].items():
            yield f"  {name}: {value if isinstance(value, str) else _text(value)}"
    yield "traceback"
    yield from (f"  {line}" for line in record.traceback.splitlines() or ["none"])


def _text(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False)
    except RecursionError:
        return json_text(value)


def _when(failure: Failure) -> str:
    if failure.worker:
        return f"attempt {failure.attempt} on {failure.worker}"
    # It died outside a worker: it was cancelled while it waited, or the broker dropped it.
    return f"after attempt {failure.attempt}" if failure.attempt else "before its first attempt"
