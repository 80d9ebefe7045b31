"""What the commands on dead letters share: the options that choose letters, a bar, and notes on stderr."""

from __future__ import annotations

import functools
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from celery_dlx_retry.cli.context import management_option, note, queue_name, text
from celery_dlx_retry.cli.output import echo, monitored
from celery_dlx_retry.deadletters.filter import LetterFilter
from celery_dlx_retry.operations.monitor import (
    Audited,
    Monitor,
    Notice,
    OnlyKnownQueues,
    QueueForbidden,
    UnknownQueuesSkipped,
    UnreadableLetter,
)
from celery_dlx_retry.operations.operation_errors import InvalidRequest
from celery_dlx_retry.operations.select_letters import LetterQuery
from celery_dlx_retry.policy.reasons import Reason
from celery_dlx_retry.sentences import counted
from celery_dlx_retry.values.amounts import age_ms
from celery_dlx_retry.values.escaping import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


Command = TypeVar("Command", bound="Callable[..., Any]")
Parsed = TypeVar("Parsed")

all_option = click.option("--all", "everything", is_flag=True, help="All letters, in place of ids or filters.")

_MOST_UNREADABLE = 5


def _several(*names: str, kind: Any = text, metavar: str | None = "NAME", about: str) -> Callable[[Command], Command]:
    """Return an option that can be given several times, with its type and its help text."""
    return click.option(*names, multiple=True, type=kind, metavar=metavar, help=about)


#: For the commands that are about one task id.
queue_option = _several("--queue", "-q", "queues", kind=queue_name, about="Only dead letters of this work queue.")


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
        "--queue", "-q", "queues", kind=queue_name, about="Only letters of this work queue, or of the orphans' queue."
    ),
    _several("--task", "tasks", about="Only letters of this task; * matches any text."),
    _several(
        "--reason",
        "reasons",
        kind=click.Choice([*map(str, Reason)]),
        metavar=None,
        about="Only letters with this reason.",
    ),
    _several(
        "--exception", "exceptions", metavar="TYPE", about="Only letters with this exception type, such as KeyError."
    ),
    click.option("--text", type=text, help="Only letters with this text in error, traceback or arguments."),
    click.option(
        "--older-than", callback=_age, metavar="AGE", help="Only letters that died longer ago: 90s, 30m, 2h, 7d, 2w."
    ),
    click.option(
        "--newer-than", "--since", "newer_than", callback=_age, metavar="AGE", help="Only letters that died since then."
    ),
    _several("--group", "groups", metavar="GROUP", about="Only letters of this group; see dead groups."),
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
            **{name: options.pop(name) for name in ("tasks", "reasons", "exceptions", "groups", "unreadable")},
            ids=frozenset(options.pop("task_ids", ())),
            text=options.pop("text") or "",
            died_before_ms=None if older is None else now_ms - older,
            died_after_ms=None if newer is None else now_ms - newer,
        )
        query = LetterQuery(
            queues=options.pop("queues"),
            filter=chosen,
            everything=options.pop("everything", False),
            management_url=options.pop("management_url"),
        )
        if chosen.impossible:
            note(f"this filter matches no letter: {chosen.impossible}.")
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


class Reporter:
    """Prints notes for what an operation notifies; ``others`` gets all other notices."""

    def __init__(self, others: Callable[[Notice], None] = lambda _: None) -> None:
        self.monitor = Monitor(progress=self._on_progress, notice=self._on_notice)
        self._others = others
        self._progress: Callable[[int, int], None] | None = None
        #: Queue and position of the letters with unreadable headers that a note has named.
        self._unreadable: set[tuple[str, int]] = set()

    @contextmanager
    def bar(self, what: str) -> Iterator[None]:
        """Show progress as a bar with this name, on a terminal."""
        with monitored(what) as monitor:
            self._progress = monitor.progress
            try:
                yield
            finally:
                self._progress = None

    def _on_progress(self, done: int, total: int) -> None:
        if self._progress is not None:
            self._progress(done, total)

    def _on_notice(self, notice: Notice) -> None:
        if isinstance(notice, Audited):
            echo(notice.line, err=True)
        elif isinstance(notice, QueueForbidden):
            note(f"{notice.queue} is left out: the broker user may not read it.")
        elif isinstance(notice, OnlyKnownQueues):
            note(
                "only the dead letters of queues that this app knows are looked at; "
                f"those of a queue that only `celery worker -Q` names need its name: -q NAME. {notice.problem}"
            )
        elif isinstance(notice, UnknownQueuesSkipped):
            flags = " ".join(f"-q {queue}" for queue in notice.work_queues)
            note(f"queues that this app does not know are left alone. To include them, add {flags}.")
        elif isinstance(notice, UnreadableLetter):
            self._note_unreadable(notice)
        else:
            self._others(notice)

    def _note_unreadable(self, notice: UnreadableLetter) -> None:
        """Name the letter and what can be done with it; only the first few of many."""
        letter, key = notice.letter, (notice.letter.queue, notice.position)
        if key in self._unreadable or len(self._unreadable) >= _MOST_UNREADABLE:
            return
        self._unreadable.add(key)
        note(
            printable(
                f"the letter at position {notice.position} of {letter.queue} (task id "
                f"{letter.record.task_id or 'not known'}, body of {len(letter.message.body)} bytes) has headers that "
                f"cannot be read: {letter.unreadable}."
            )
        )
        if len(self._unreadable) == 1:
            note(
                "`dead list --unreadable` shows such letters, `dead export` keeps the bytes of these headers, "
                "`dead replay` sends the task without them, `dead purge` deletes the letter."
            )


def describe_queues(per_queue: Mapping[str, int]) -> str:
    """Return how many dead letters there are in which queues, for a question."""
    where = printable(", ".join(f"{count} in {queue}" for queue, count in per_queue.items()))
    return f"{counted(sum(per_queue.values()), 'dead letter')} ({where})"
