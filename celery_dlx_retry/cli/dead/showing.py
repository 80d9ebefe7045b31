"""``celery dlx dead show``: everything about one dead letter."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from celery_dlx_retry.cli.context import management_option
from celery_dlx_retry.cli.dead.selection import Selection
from celery_dlx_retry.cli.output import echo, json_line, json_option, seconds, time_of
from celery_dlx_retry.cli.parameters import QUEUE_NAME, TEXT
from celery_dlx_retry.deadletters.export import shown
from celery_dlx_retry.deadletters.filter import LetterFilter
from celery_dlx_retry.deadletters.letter import facts_of
from celery_dlx_retry.errors import Unreadable
from celery_dlx_retry.values.escaping import json_text
from celery_dlx_retry.wire.dead_record import original_of
from celery_dlx_retry.wire.task_body import links_of, payload_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_dlx_retry.deadletters.letter import DeadMessage
    from celery_dlx_retry.wire.headers import Failure

_ARGUMENTS = ("argsrepr", "kwargsrepr")
# A quorum queue counts deliveries, and each look is one.
_LOOKS = ("x-delivery-count", "x-acquired-count")


@click.command("show")
@click.argument("task_id", type=TEXT)
@click.option(
    "--queue", "-q", "queues", multiple=True, type=QUEUE_NAME, metavar="NAME", help="Look only into this work queue's."
)
@management_option
@click.option("--args", "with_args", is_flag=True, help="Its arguments, too; a pickle is never opened.")
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
    chosen = LetterFilter(ids=frozenset([task_id]))
    selection = Selection(app=ctx.obj.app, named=queues, chosen=chosen, management_url=management_url)
    count = 0
    with selection.reading() as letters:
        for letter in letters:
            count += 1
            if as_json:
                json_line(_facts(letter, with_args=with_args))
            else:
                for line in _lines(letter, with_args=with_args):
                    echo(line)
    if not count:
        echo(f"No dead letter has the task id {task_id}.", err=True)
        ctx.exit(1)


def _facts(letter: DeadMessage, *, with_args: bool) -> dict[str, Any]:
    message = letter.message
    facts = {
        **facts_of(letter),
        "content_type": message.content_type,
        "content_encoding": message.content_encoding,
        "body_bytes": len(message.body),
        "edited": original_of(message.headers) is not None,
        "links": _links(letter),
        "headers": _foreign_headers(letter),
        "properties": _properties(letter),
    }
    return {**facts, "arguments": _arguments(letter)} if with_args else facts


def _lines(letter: DeadMessage, *, with_args: bool) -> Iterator[str]:
    record, message = letter.record, letter.message
    yield f"{record.task or '(no task)'} {record.task_id}"
    links = _links(letter)
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
        ("edited", "yes; dead edit --undo brings the original back" if original_of(message.headers) else "no"),
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
    for title, table in (("headers", _foreign_headers(letter)), ("properties", _properties(letter))):
        yield title
        for name, value in table.items():
            yield f"  {name}: {_text(value)}"
    if with_args:
        yield "arguments"
        for name, value in _arguments(letter).items():
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
    # On no worker: somebody cancelled it while it waited, or the broker threw it out.
    return f"after attempt {failure.attempt}" if failure.attempt else "before its first attempt"


def _foreign_headers(letter: DeadMessage) -> dict[str, Any]:
    """Those that are not shown elsewhere; what tells of arguments is not shown at all."""
    return {
        str(key): shown(value)
        for key, value in letter.message.headers.items()
        if key not in _ARGUMENTS and key not in _LOOKS and not str(key).startswith("dlx-")
    }


def _properties(letter: DeadMessage) -> dict[str, Any]:
    apart = {"application_headers", "content_type", "content_encoding"}
    return {key: shown(value) for key, value in letter.message.properties.items() if key not in apart}


def _links(letter: DeadMessage) -> list[str] | None:
    try:
        return list(links_of(letter.message))
    except Unreadable:
        return None


def _arguments(letter: DeadMessage) -> dict[str, Any]:
    try:
        payload = payload_of(letter.message)
    except Unreadable as exc:
        headers = letter.message.headers
        told = {name: str(headers[name]) for name in _ARGUMENTS if headers.get(name) is not None}
        return told | {"not decoded": exc.problem}
    return {"args": payload.args, "kwargs": payload.kwargs}
