"""The one screen as a value: what is wrong now, what each work queue holds, and what fails most."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, cast

from celery_dlx_retry.deadletters.groups import grouped
from celery_dlx_retry.doctor.facts import Facts, NodeFacts, WorkQueueFacts
from celery_dlx_retry.doctor.now_rules import NOW
from celery_dlx_retry.doctor.rules import Finding, findings
from celery_dlx_retry.errors import Missing
from celery_dlx_retry.operations.connect import broker_errors
from celery_dlx_retry.operations.monitor import NO_MONITOR, Monitor
from celery_dlx_retry.operations.select_letters import LetterQuery, SelectedLetters
from celery_dlx_retry.operations.status import StatusReader
from celery_dlx_retry.policy.reasons import Reason
from celery_dlx_retry.topology.broker_requirements import Server

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from celery import Celery

    from celery_dlx_retry.broker.queue_status import QueueState
    from celery_dlx_retry.deadletters.groups import Group
    from celery_dlx_retry.deadletters.letter import DeadMessage
    from celery_dlx_retry.operations.session import BrokerSession
    from celery_dlx_retry.operations.status import Status
    from celery_dlx_retry.topology.management_answers import Node

#: "Lately" is this long.
LATELY_MINUTES = 10
# The clocks of worker and operator differ, and a work queue takes its time.
_OVERDUE_MS = 60_000
_ROLES = ("work", "dead")
_READ_ROLES = {"dead", "orphans"}


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueLine:
    """One work queue. None means not known."""

    #: Empty for the lanes that work queues share.
    queue: str
    exists: bool = True
    #: Its dead-letter queue exists, or tasks wait for it.
    was_used: bool = True
    ready: int = 0
    #: Messages that workers hold, the prefetched ones included.
    running: int | None = None
    waiting: int = 0
    #: When its next task comes back, in ms since 1970.
    next_ms: int | None = None
    dead: int = 0
    #: How many died in the last ten minutes.
    dead_lately: int | None = None
    workers: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLine:
    """A group of dead letters; of several tasks, queues or reasons the most frequent one."""

    group: str
    count: int
    tasks: Mapping[str, int]
    queues: Mapping[str, int]
    reasons: Mapping[str, int]
    error: str
    where: str
    first_ms: int
    last_ms: int
    #: Twelve bars: when its letters died, from the first of all groups until now.
    trend: str
    sample_id: str
    sample_error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Letters:
    """What was found in the dead letters themselves. Reading many takes seconds."""

    groups: tuple[GroupLine, ...] = ()
    #: Work queue -> letters that died in the last ten minutes.
    lately: Mapping[str, int] = field(default_factory=dict)
    #: Task -> letters that died in the last ten minutes in a crash loop.
    crash_loops: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """The one screen."""

    read_at_ms: int
    #: ``RabbitMQ 4.3.6``.
    broker: str
    #: What is wrong now, the worst first.
    problems: tuple[Finding, ...]
    queues: tuple[QueueLine, ...]
    orphans: int
    #: Lanes in which tasks wait.
    lanes: tuple[QueueState, ...]
    #: None: the dead letters were not read.
    groups: tuple[GroupLine, ...] | None
    no_management: str = ""

    @property
    def dead(self) -> int:
        """Return how many dead letters there are."""
        return sum(it.dead for it in self.queues)


class OverviewReader:
    """Reads the overview again and again over one session. Messages stay in their places."""

    def __init__(self, session: BrokerSession) -> None:
        self._session = session
        self._status = StatusReader(session)
        self._seen: _Seen | None = None

    def read(self, letters: Letters | None = None, *, keep_depths: bool = False) -> Overview:
        """Return the overview now, with what was found in the letters.

        With ``keep_depths`` a dead-letter queue holds at least as many letters as the last time: a queue looks empty
        while this process reads its letters.
        """
        session, status = self._session, self._status.read()
        if keep_depths and self._seen:
            before = {it.queue: it.ready for it in self._seen.status.queues if it.role in _READ_ROLES}
            queues = [replace(it, ready=max(it.ready, before.get(it.queue, 0))) for it in status.queues]
            status = replace(status, queues=tuple(queues))
        with broker_errors(session.app):
            self._seen = _Seen(
                status=status,
                published=session.management.published(minutes=LATELY_MINUTES) if session.management else {},
                nodes=session.management.nodes() if session.management else (),
                owners=session.dead_letter_queues(),
            )
        return self.with_letters(letters)

    def with_letters(self, letters: Letters | None) -> Overview:
        """Return the last overview with what was found in the letters; do not ask the broker again."""
        session, seen = self._session, self._seen
        if seen is None:
            return self.read(letters)
        queues = tuple(
            sorted(_lines(session, seen, letters), key=lambda it: (it.exists or not it.was_used, not it.dead, it.queue))
        )
        facts = _now_facts(seen, queues, letters)
        return Overview(
            read_at_ms=seen.status.read_at_ms,
            broker=str(Server.of(session.connection.connection.server_properties)),
            problems=tuple(it for it in findings(facts) if it.code in NOW),
            queues=queues,
            orphans=seen.status.ready("orphans"),
            lanes=seen.status.filled_lanes,
            groups=letters.groups if letters else None,
            no_management=session.no_management,
        )

    def facts(self) -> Facts:
        """Return the facts for the rules about what is wrong now, from the last reading."""
        if self._seen is None:
            self.read()
        seen = cast("_Seen", self._seen)
        return _now_facts(seen, tuple(_lines(self._session, seen, None)), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """What one reading found."""

    status: Status
    published: Mapping[str, int]
    nodes: tuple[Node, ...]
    #: Dead-letter queue -> its work queues.
    owners: Mapping[str, list[str]]


def read_letters(
    app: Celery, *, queues: Iterable[str] = (), management_url: str | None = None, monitor: Monitor = NO_MONITOR
) -> Letters:
    """Read all dead letters and return what they have in common. They stay where they are."""
    now_ms = time.time_ns() // 1_000_000
    lately: Counter[str] = Counter()
    crash_loops: Counter[str] = Counter()

    def counted(letters: Iterable[DeadMessage]) -> Iterator[DeadMessage]:
        for letter in letters:
            record = letter.record
            if record.died_at_ms >= now_ms - LATELY_MINUTES * 60_000:
                lately[record.queue] += 1
                if record.reason in (Reason.CRASH_LOOP, Reason.WORKER_LOST):
                    crash_loops[record.task] += 1
            yield letter

    query = LetterQuery(queues=tuple(queues), management_url=management_url)
    try:
        with SelectedLetters(app, query, monitor=monitor) as selected:
            groups = grouped(counted(selected))
    except Missing:  # no worker has made a dead-letter queue yet
        groups = []
    first_ms = min((it.first_ms for it in groups if it.first_ms), default=now_ms)
    return Letters(
        groups=tuple(group_line(it, first_ms=first_ms, last_ms=now_ms) for it in groups),
        lately=lately,
        crash_loops=crash_loops,
    )


def group_line(group: Group, *, first_ms: int, last_ms: int) -> GroupLine:
    """Return a group as a value; its trend is between these two times."""
    return GroupLine(
        group=group.fingerprint.group,
        count=group.count,
        tasks=dict(group.tasks),
        queues=dict(group.queues),
        reasons=dict(group.reasons),
        error=group.fingerprint.error,
        where=group.fingerprint.where,
        first_ms=group.first_ms,
        last_ms=group.last_ms,
        trend=group.deaths.trend(first_ms, last_ms),
        sample_id=group.sample_id,
        sample_error=group.sample_error,
    )


def _urgency(line: QueueLine) -> tuple[bool, bool, str]:
    """Return a key that puts missing queues first, then those with dead letters."""
    return line.exists or not line.was_used, not line.dead, line.queue


def _now_facts(seen: _Seen, queues: Iterable[QueueLine], letters: Letters | None) -> Facts:
    status = seen.status
    return Facts(
        queues=tuple(
            WorkQueueFacts(
                name=it.queue,
                exists=it.exists,
                was_used=it.was_used,
                ready=it.ready,
                consumers=it.workers,
                waiting=it.waiting,
                dead_lately=it.dead_lately or 0,
            )
            for it in queues
            if it.queue
        ),
        orphans=status.ready("orphans"),
        overdue_ms={
            it.queue: status.read_at_ms - it.next_ms
            for it in status.filled_lanes
            if it.next_ms is not None and it.next_ms < status.read_at_ms - _OVERDUE_MS
        },
        crash_loops=letters.crash_loops if letters else {},
        nodes=tuple(
            NodeFacts(
                name=it.name,
                is_running=it.is_running,
                alarms=("memory",) * it.has_memory_alarm + ("disk",) * it.has_disk_alarm,
            )
            for it in seen.nodes
        ),
    )


def _lines(session: BrokerSession, seen: _Seen, letters: Letters | None) -> Iterator[QueueLine]:
    status, owners, names = seen.status, seen.owners, session.names
    by_role = {role: [it for it in status.queues if it.role == role] for role in _ROLES}
    keys = {it.name: it.dead_letter_key for it in session.work_queues}
    dead = {it.queue: it for it in by_role["dead"]}
    lanes: dict[str, list[QueueState]] = {}
    for state in status.filled_lanes:
        lane = names.lane_of(state.queue)
        lanes.setdefault(lane.queue if lane else "", []).append(state)
    work = {it.queue: it for it in by_role["work"]}
    #: The work queues that the broker remembers: their dead-letter queue has letters, or tasks wait for them.
    remembered = {key for name, of in owners.items() if name in dead and dead[name].ready for key in of}
    remembered -= {*keys.values()}
    for queue in dict.fromkeys([*work, *sorted(remembered), *sorted(lanes)]):
        found, waits = work.get(queue), lanes.get(queue, [])
        mine = next((it for it, of in owners.items() if of == [keys.get(queue, queue)]), "")
        letter_queue = dead.get(mine)
        yield QueueLine(
            queue=queue,
            exists=not queue or (found is not None and found.exists),
            was_used=bool(waits) or (letter_queue is not None and letter_queue.exists),
            ready=found.ready if found else 0,
            running=found.unacked if found else None,
            waiting=sum(it.ready for it in waits),
            next_ms=min((it.next_ms for it in waits if it.next_ms is not None), default=None),
            dead=letter_queue.ready if letter_queue else 0,
            dead_lately=letters.lately.get(queue, 0) if letters else seen.published.get(mine),
            workers=found.consumers if found else 0,
        )
    for name, of in owners.items():
        if len(of) > 1 and name in dead:  # work queues share it
            yield QueueLine(queue=name, dead=dead[name].ready, dead_lately=seen.published.get(name), workers=1)
