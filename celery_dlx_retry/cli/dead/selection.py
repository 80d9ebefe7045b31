"""Which dead letters a command is about: the options that all commands share, and the letters that they choose."""

from __future__ import annotations

import functools
import time
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar, get_args

import click

from celery_dlx_retry.app.context import context_of
from celery_dlx_retry.broker.dead_letters import browse, depth
from celery_dlx_retry.cli.context import (
    all_dead_letter_queues,
    connect,
    connection_of,
    insist_on_rabbitmq,
    known_work_queues,
    management_option,
    note,
    reached,
)
from celery_dlx_retry.cli.errors import one_sentence
from celery_dlx_retry.cli.output import counted, echo, progress
from celery_dlx_retry.cli.parameters import QUEUE_NAME, TEXT
from celery_dlx_retry.deadletters.filter import LetterFilter
from celery_dlx_retry.errors import Forbidden, Missing
from celery_dlx_retry.policy.reasons import Reason
from celery_dlx_retry.settings import QueueType
from celery_dlx_retry.values.amounts import age_ms
from celery_dlx_retry.values.escaping import printable

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Generator, Iterable, Iterator

    from kombu.connection import Connection

    from celery_dlx_retry.deadletters.letter import DeadMessage


Parsed = TypeVar("Parsed")
_MOST_NAMED = 5


def amount(
    parse: Callable[[str], Parsed | None], wanted: str
) -> Callable[[click.Context, click.Parameter, str | None], Parsed | None]:
    """The callback of an option that takes an age, a rate or a share."""

    def convert(_ctx: click.Context, _parameter: click.Parameter, value: str | None) -> Parsed | None:
        found = None if value is None else parse(value)
        if value is not None and found is None:
            raise click.BadParameter(f"{value!r:.80} is not {wanted}.")
        return found

    return convert


@dataclass(slots=True, kw_only=True)
class Selection:
    """The dead-letter queues to look into, and the letters that are meant."""

    app: Any
    #: The work queues that were named; none: all that can be found.
    named: tuple[str, ...]
    chosen: LetterFilter
    management_url: str | None = None
    #: For what changes many at once: a queue that the app does not know may be another app's of the same prefix.
    only_known: bool = False
    _seen_groups: set[str] = field(default_factory=set, init=False)
    _all: list[str] = field(default_factory=list, init=False)
    #: Letters with unreadable headers that were named on stderr, by queue and position.
    _named_unreadable: set[tuple[str, int]] = field(default_factory=set, init=False)
    _refused: set[str] = field(default_factory=set, init=False)

    def __post_init__(self) -> None:
        insist_on_rabbitmq(self.app)

    def insist(self, *, everything: bool) -> None:
        """Whoever changes something says what: ids, filters or a queue, or all."""
        if everything and not self.chosen.is_empty:
            raise click.UsageError("--all means all of them: give it without task ids and filters, or these alone.")
        if not everything and self.chosen.is_empty and not self.named:
            raise click.UsageError("Give task ids, filters, or --all.")

    def wanted(self, letter: DeadMessage) -> bool:
        """Whether a letter is meant."""
        if self.chosen.groups:
            self._seen_groups.add(letter.fingerprint.group)
        names = context_of(self.app).names
        if self.named and "{queue}" not in names.dead_letter_queue and letter.queue == names.dead_letter_queue:
            # Several work queues share it.
            return bool({letter.record.queue, letter.record.dead_letter_key} & set(self.named)) and self.chosen(letter)
        return self.chosen(letter)

    @property
    def absent_groups(self) -> list[str]:
        """Groups that were asked for and that no letter is in, once all letters were read."""
        return sorted(set(self.chosen.groups) - self._seen_groups)

    def tells_missing(self, ids: Iterable[str] = ()) -> bool:
        """Name on stderr what was asked for and is not there; whether there is any."""
        missing = [*(f"task id {it}" for it in sorted(ids)), *(f"group {it}" for it in self.absent_groups)]
        if missing:
            echo(f"Not found: {', '.join(missing)}.", err=True)
        return bool(missing)

    def queues(self, connection: Connection) -> dict[str, int]:
        """The dead-letter queues that there are, with their depths; those that were named have to be there."""
        self._all = self._all or list(dict.fromkeys(self._possible(connection)))
        found: dict[str, int] = {}
        for name in self._all:
            lying = None
            with self.passing_over(name):
                lying = depth(connection, name)
            if name in self._refused:
                continue
            if lying is not None:
                found[name] = lying
            elif self.named:
                raise Missing(kind="dead-letter queue", name=name, cure="It is made when a worker starts.")
        if not found and not self._refused:
            raise Missing(kind="dead-letter queue", name=self._all[0], cure="It is made when a worker starts.")
        return found

    @contextmanager
    def passing_over(self, queue: str) -> Iterator[None]:
        """Go on without a queue that this user may not read if it is another app's: apps may share a prefix.

        A queue of this app, or one that the command names, is an error: a list without it would look complete.
        """
        try:
            yield
        except Forbidden as problem:
            is_ours = queue in map(context_of(self.app).names.dead_letters, known_work_queues(self.app))
            if self.named or is_ours or problem.name != queue:
                raise
            if queue not in self._refused:
                self._refused.add(queue)
                note(f"{queue} is left out: the broker user may not read it.")

    def _possible(self, connection: Connection) -> list[str]:
        names = context_of(self.app).names
        orphans = [replace(names, kind=kind).orphans() for kind in get_args(QueueType)]
        if self.named:
            return [name if name in orphans else names.dead_letters(name) for name in self.named]
        connect(connection)
        known = [names.dead_letters(queue) for queue in known_work_queues(self.app)]
        management, problem = reached(connection, self.management_url)
        if management is not None:
            found = all_dead_letter_queues(management, names)
            others = " ".join(f"-q {work_queue}" for name, work_queue in found.items() if name not in known)
            if not self.only_known:
                return [*known, *found, *orphans]
            if others:
                note(f"queues that this app does not know are left alone. To include them, add {others}.")
            return [*known, *orphans]
        note(
            "only the dead letters of queues that this app knows are looked at; "
            f"those of a queue that only `celery worker -Q` names need its name: -q NAME. {problem}"
        )
        return [*known, *orphans]

    def letters(
        self, connection: Connection, step: Callable[[], None] = lambda: None
    ) -> Generator[DeadMessage, None, None]:
        """Those that are meant, queue by queue; all are read, for a quorum queue puts what was read behind the rest."""
        for queue in self.queues(connection):
            with self.passing_over(queue):
                for position, letter in enumerate(browse(connection, queue), start=1):
                    step()
                    if self.wanted(letter):
                        if letter.unreadable:
                            self._name_unreadable(letter, position)
                        yield letter

    def _name_unreadable(self, letter: DeadMessage, position: int) -> None:
        """Say on stderr which letter it is and what can be done with it; of many, the first ones."""
        key = (letter.queue, position)
        if key in self._named_unreadable or len(self._named_unreadable) >= _MOST_NAMED:
            return
        self._named_unreadable.add(key)
        note(
            printable(
                f"the letter at position {position} of {letter.queue} (task id {letter.record.task_id or 'not known'}, "
                f"body of {len(letter.message.body)} bytes) has headers that cannot be read: {letter.unreadable}."
            )
        )
        if len(self._named_unreadable) == 1:
            note(
                "`dead list --unreadable` shows such letters, `dead export` keeps the bytes of these headers, "
                "`dead replay` sends the task without them, `dead purge` deletes the letter."
            )

    @contextmanager
    def reading(self) -> Iterator[Iterator[DeadMessage]]:
        """Those that are meant, over a connection of their own, with a progress bar."""
        with (
            one_sentence(self.app),
            connection_of(self.app) as connection,
            progress("reading", self.total(connection)) as step,
        ):
            yield self.letters(connection, step)

    def total(self, connection: Connection) -> int:
        """How many there are to be read."""
        return sum(self.queues(connection).values())


def described(per_queue: Counter[str]) -> str:
    """So many dead letters, and where they lie; for a question."""
    where = printable(", ".join(f"{count} in {queue}" for queue, count in per_queue.items()))
    return f"{counted(per_queue.total(), 'dead letter')} ({where})"


_age = amount(age_ms, "an age: 90s, 30m, 2h, 7d or 2w")
_OPTIONS = (
    click.option(
        "--queue",
        "-q",
        "queues",
        multiple=True,
        type=QUEUE_NAME,
        metavar="NAME",
        help="Only of this work queue (or orphans).",
    ),
    click.option(
        "--task",
        "tasks",
        multiple=True,
        type=TEXT,
        metavar="NAME",
        help="Only of this task; * stands for anything.",
    ),
    click.option(
        "--reason", "reasons", multiple=True, type=click.Choice([*map(str, Reason)]), help="Only with this one."
    ),
    click.option(
        "--exception",
        "exceptions",
        multiple=True,
        type=TEXT,
        metavar="TYPE",
        help="Only of this type, as KeyError.",
    ),
    click.option("--text", type=TEXT, help="Only with this in error, traceback or arguments."),
    click.option("--older-than", callback=_age, metavar="AGE", help="Only what died longer ago: 90s, 30m, 2h, 7d, 2w."),
    click.option("--newer-than", callback=_age, metavar="AGE", help="Only what died since."),
    click.option(
        "--group",
        "groups",
        multiple=True,
        type=TEXT,
        metavar="GROUP",
        help="Only of this group; see dead groups.",
    ),
    click.option("--unreadable", is_flag=True, help="Only with headers that cannot be read."),
    management_option,
)


def selects(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options that choose letters, and what they choose as ``selection``."""

    @functools.wraps(command)
    def with_selection(ctx: click.Context, **options: Any) -> None:
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
        selection = Selection(
            app=ctx.obj.app,
            named=options.pop("queues"),
            chosen=chosen,
            management_url=options.pop("management_url"),
        )
        command(ctx, selection=selection, **options)

    decorated: Callable[..., None] = click.pass_context(with_selection)
    for option in reversed(_OPTIONS):
        decorated = option(decorated)
    return decorated
