"""Select dead letters: find the dead-letter queues of an app, read them, list and group the letters."""

from __future__ import annotations

import hashlib
import heapq
import json
import sqlite3
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, final, get_args

from celery_dlx_retry.app.context import context_of
from celery_dlx_retry.broker.counts import depth
from celery_dlx_retry.broker.dead_letters import browse
from celery_dlx_retry.deadletters.export import shown
from celery_dlx_retry.deadletters.filter import LetterFilter
from celery_dlx_retry.deadletters.groups import Group, grouped
from celery_dlx_retry.errors import Forbidden, Missing
from celery_dlx_retry.operations.app_queues import known_work_queues, load_tasks, queues_on_broker
from celery_dlx_retry.operations.connect import (
    broker_errors,
    broker_iterator,
    connect,
    connection_of,
    find_management,
    require_rabbitmq,
)
from celery_dlx_retry.operations.monitor import (
    NO_MONITOR,
    Monitor,
    OnlyKnownQueues,
    QueueForbidden,
    UnknownQueuesSkipped,
    UnreadableLetter,
)
from celery_dlx_retry.operations.operation_errors import InvalidRequest
from celery_dlx_retry.settings import QueueType
from celery_dlx_retry.wire.headers import without_broker_headers

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator

    from kombu.connection import Connection

    from celery_dlx_retry.deadletters.letter import DeadMessage


#: The columns that a list can be sorted by.
SortKey = Literal["died", "task", "error", "reason", "attempts", "queue"]
_SORT_KEYS: dict[str, Callable[[DeadMessage], Any]] = {
    "died": lambda letter: letter.record.died_at_ms,
    "task": lambda letter: letter.record.task,
    "error": lambda letter: (letter.record.error_type, letter.record.error),
    "reason": lambda letter: str(letter.record.reason),
    "attempts": lambda letter: letter.record.attempts,
    "queue": lambda letter: letter.record.queue,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterQuery:
    """Which dead letters an operation is about."""

    #: Work queues, or ``Names.orphans()``; empty: all dead-letter queues that can be found.
    queues: tuple[str, ...] = ()
    filter: LetterFilter = field(default_factory=LetterFilter)
    #: An operation that changes letters needs this if the query has no queues and no filters.
    everything: bool = False
    #: RabbitMQ's HTTP API; None: the usual port of the broker's host.
    management_url: str | None = None

    def require_explicit(self) -> None:
        """Raise InvalidRequest unless the query names queues, ids or filters, or ``everything`` and no filter."""
        if self.everything and not self.filter.is_empty:
            raise InvalidRequest(detail="A query with everything=True takes no task ids and no filters.")
        if not self.everything and self.filter.is_empty and not self.queues:
            raise InvalidRequest(detail="The query needs task ids, filters or queues, or everything=True.")


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterList:
    """A part of the letters that a query selects."""

    #: Sorted, without bodies and headers.
    letters: tuple[DeadMessage, ...]
    #: How many letters the query selects.
    total: int
    #: Groups of the query that no letter belongs to.
    absent_groups: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterGroups:
    """The letters that a query selects, by what failed where; the largest group first."""

    groups: tuple[Group, ...]
    absent_groups: tuple[str, ...]


def list_letters(  # noqa: PLR0913 - which, in which order
    app: Any,
    query: LetterQuery,
    *,
    sort: SortKey = "died",
    reverse: bool = False,
    limit: int = 100,
    monitor: Monitor = NO_MONITOR,
) -> LetterList:
    """Return the first letters in this order. The letters stay in their queues."""
    total = 0

    def without_content(letters: Iterable[DeadMessage]) -> Iterator[DeadMessage]:
        nonlocal total
        for letter in letters:
            total += 1
            yield letter.without_content()

    # Memory holds no more letters than the limit.
    choose = heapq.nlargest if reverse else heapq.nsmallest
    with SelectedLetters(app, query, monitor=monitor) as selected:
        letters = choose(limit, without_content(selected), key=_SORT_KEYS[sort])
    return LetterList(letters=tuple(letters), total=total, absent_groups=selected.absent_groups)


def group_letters(app: Any, query: LetterQuery, *, monitor: Monitor = NO_MONITOR) -> LetterGroups:
    """Count letters by exception type, and by the innermost frame of your own code or by the task."""
    with SelectedLetters(app, query, monitor=monitor) as selected:
        groups = grouped(selected)
    return LetterGroups(groups=tuple(groups), absent_groups=selected.absent_groups)


@final
class SelectedLetters:
    """The letters that a query selects, over one connection; a context manager that you iterate over.

    Reading holds the letters of a queue until its end, so that other readers do not see them meanwhile. Reading changes
    nothing. Entering the context raises Missing if there is no dead-letter queue.
    """

    def __init__(
        self, app: Any, query: LetterQuery, *, only_known: bool = False, monitor: Monitor = NO_MONITOR
    ) -> None:
        load_tasks(app)
        require_rabbitmq(app)
        self.app, self.query, self.monitor = app, query, monitor
        #: Another app may use the same prefix. An operation that changes many letters leaves its queues alone.
        self._only_known = only_known
        self._names = context_of(app).names
        self._seen_groups: set[str] = set()
        self._possible: list[str] = []
        self._forbidden: set[str] = set()
        self._reading: Generator[DeadMessage, None, None] | None = None

    def __enter__(self) -> SelectedLetters:
        self.connection: Connection = connection_of(self.app)
        try:
            self.queues()
        except BaseException:
            self.connection.release()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            if self._reading is not None:
                self._reading.close()  # the letters go back before the connection ends
        finally:
            self.connection.release()

    def __iter__(self) -> Iterator[DeadMessage]:
        """Yield the letters queue by queue."""
        self._reading = self._read()
        return self._reading

    def _read(self) -> Generator[DeadMessage, None, None]:
        """Read every letter to the end: a quorum queue puts what was read behind the rest."""
        queues, done = self.queues(), 0
        total = sum(queues.values())
        for queue in queues:
            with self.skip_forbidden(queue), broker_iterator(self.app, browse(self.connection, queue)) as letters:
                for position, letter in enumerate(letters, start=1):
                    if self.monitor.is_cancelled:
                        return
                    done += 1
                    self.monitor.progress(done, total)
                    if self.matches(letter):
                        if letter.unreadable:
                            self.monitor.notice(UnreadableLetter(letter=letter, position=position))
                        yield letter

    def matches(self, letter: DeadMessage) -> bool:
        """Return True if the query selects this letter."""
        wanted, queues = self.query.filter, self.query.queues
        if wanted.groups:
            self._seen_groups.add(letter.fingerprint.group)
        if queues and "{queue}" not in self._names.dead_letter_queue and letter.queue == self._names.dead_letter_queue:
            # Several work queues share this dead-letter queue.
            return bool({letter.record.queue, letter.record.dead_letter_key} & set(queues)) and wanted(letter)
        return wanted(letter)

    @property
    def absent_groups(self) -> tuple[str, ...]:
        """Return the groups of the query that no letter belongs to, once all letters were read."""
        return tuple(sorted(set(self.query.filter.groups) - self._seen_groups))

    def queues(self) -> dict[str, int]:
        """Return the dead-letter queues that exist, with their depths; raise Missing if a named one does not."""
        with broker_errors(self.app):
            self._possible = self._possible or list(dict.fromkeys(self._possible_queues()))
            found: dict[str, int] = {}
            for name in self._possible:
                with self.skip_forbidden(name):
                    if (count := depth(self.connection, name)) is not None:
                        found[name] = count
            absent = [name for name in self._possible if name not in found and name not in self._forbidden]
            if absent and (self.query.queues or not (found or self._forbidden)):
                raise Missing(kind="dead-letter queue", name=absent[0], cure="It is made when a worker starts.")
            return found

    @contextmanager
    def skip_forbidden(self, queue: str) -> Iterator[None]:
        """Continue without a queue of another app that the broker user may not read: apps may share a prefix.

        A queue of this app, or one that the query names, raises Forbidden: a list without it would look complete.
        """
        try:
            yield
        except Forbidden as problem:
            is_ours = queue in map(self._names.dead_letters, known_work_queues(self.app))
            if self.query.queues or is_ours or problem.name != queue:
                raise
            if queue not in self._forbidden:
                self._forbidden.add(queue)
                self.monitor.notice(QueueForbidden(queue=queue))

    def _possible_queues(self) -> list[str]:
        orphans = [replace(self._names, kind=kind).orphans() for kind in get_args(QueueType)]
        if self.query.queues:
            return [name if name in orphans else self._names.dead_letters(name) for name in self.query.queues]
        connect(self.connection)
        known = [self._names.dead_letters(queue) for queue in known_work_queues(self.app)]
        management, problem = find_management(self.connection, self.query.management_url)
        if management is None:
            self.monitor.notice(OnlyKnownQueues(problem=problem))
            return [*known, *orphans]
        found = queues_on_broker(management, self._names).dead
        if not self._only_known:
            return [*known, *found, *orphans]
        if others := tuple(work_queue for name, work_queue in found.items() if name not in known):
            self.monitor.notice(UnknownQueuesSkipped(work_queues=others))
        return [*known, *orphans]


@final
class SeenLetters:
    """Counts equal letters, and knows which task ids died when."""

    def __init__(self) -> None:
        # An empty name is a temporary file. SQLite deletes it when the connection is closed.
        self._database = sqlite3.connect("")
        self._database.execute("CREATE TABLE letter (key BLOB PRIMARY KEY, count INTEGER) WITHOUT ROWID")
        self._database.execute("CREATE TABLE death (key BLOB PRIMARY KEY) WITHOUT ROWID")

    def __enter__(self) -> SeenLetters:
        return self

    def __exit__(self, *_: object) -> None:
        self._database.close()

    def add(self, letter: DeadMessage) -> None:
        """Count a letter."""
        self._database.execute(
            "INSERT INTO letter VALUES (?, 1) ON CONFLICT (key) DO UPDATE SET count = count + 1", (_key(letter),)
        )
        if _has_death(letter):
            self._database.execute("INSERT OR IGNORE INTO death VALUES (?)", (_digest(*_death(letter)),))

    def take(self, letter: DeadMessage) -> bool:
        """Take an equal letter from the count; return False if none is left."""
        taken = self._database.execute(
            "UPDATE letter SET count = count - 1 WHERE key = ? AND count > 0", (_key(letter),)
        )
        return taken.rowcount == 1

    def has_other_version(self, letter: DeadMessage) -> bool:
        """Return True if a letter with this queue, task id and time of death was counted."""
        found = self._database.execute("SELECT 1 FROM death WHERE key = ?", (_digest(*_death(letter)),))
        return _has_death(letter) and found.fetchone() is not None


def _has_death(letter: DeadMessage) -> bool:
    return bool(letter.record.task_id and letter.record.died_at_ms)


def _death(letter: DeadMessage) -> list[bytes]:
    record = letter.record
    return [text.encode("utf-8", "replace") for text in (letter.queue, record.task_id, str(record.died_at_ms))]


def _key(letter: DeadMessage) -> bytes:
    """Return a key of queue, task id, time of death, headers and body: an edited letter is another letter."""
    body = letter.message.body
    try:
        kept = {repr(key): shown(value) for key, value in without_broker_headers(letter.message.headers).items()}
        headers = json.dumps(kept, sort_keys=True, default=str)  # a quorum queue sorts headers when it adds its own
    except RecursionError:
        headers = ""
    body = body.encode("utf-8", "surrogatepass") if isinstance(body, str) else bytes(body)
    return _digest(*_death(letter), headers.encode(), body)


def _digest(*parts: bytes) -> bytes:
    return hashlib.sha256(b"".join(b"%d:%s" % (len(part), part) for part in parts)).digest()
