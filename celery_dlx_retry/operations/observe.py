"""Observe an app's queues again and again, for metrics: counts only, no message is read unless the caller asks."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from celery_dlx_retry.broker.counts import counts
from celery_dlx_retry.broker.queue_status import oldest_dead_letter_ms
from celery_dlx_retry.operations.app_queues import type_in_api
from celery_dlx_retry.operations.connect import broker_errors
from celery_dlx_retry.operations.diagnose import diagnose_quietly
from celery_dlx_retry.operations.lane_age import LaneAge
from celery_dlx_retry.operations.session import BrokerSession, open_session
from celery_dlx_retry.topology.broker_requirements import Server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from celery import Celery

    from celery_dlx_retry.doctor.rules import Finding
    from celery_dlx_retry.topology.names import Lane

#: The lane of all messages in the ladder.
LADDER = "ladder"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkQueueCount:
    """A work queue that exists."""

    queue: str
    messages: int
    consumers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingCount:
    """The messages of one work queue that wait in lanes of one delay."""

    #: Empty if work queues share the lane.
    queue: str
    #: ``60s``, or ``ladder``.
    lane: str
    messages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterCount:
    """A dead-letter queue that exists."""

    #: The work queue; the dead-letter queue itself if work queues share it.
    queue: str
    dead_letter_queue: str
    messages: int
    #: When the first letter died, in ms since 1970. Only a peek knows it.
    oldest_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What one reading found. None means not known."""

    read_at_ms: int
    broker_version: str
    #: Why waiting messages are not known; empty if they are.
    no_management: str
    work_queues: tuple[WorkQueueCount, ...]
    dead_letters: tuple[DeadLetterCount, ...]
    orphans: int | None
    waiting: tuple[WaitingCount, ...] | None
    #: By lane: for how many ms at least a message is overdue.
    overdue_ms: Mapping[str, int]
    #: Queues and exchanges that a worker would declare and that do not exist; lanes that a retry makes are not counted.
    missing: tuple[str, ...]
    findings: tuple[Finding, ...]


@dataclass(slots=True)
class _Plan:
    """What changes rarely, and is read rarely."""

    until: float
    missing: tuple[str, ...]
    findings: tuple[Finding, ...]
    work_queues: list[str]
    #: Names of dead-letter queues with the work queues that use them.
    dead_letter_queues: dict[str, list[str]]
    oldest_ms: dict[str, int | None]


class Observer:
    """Keeps one session with the broker, and opens a new one after an error. For one thread.

    ``check_seconds``: how often to compare the topology with the plan and to run the doctor's rules. ``peeks``: then
    also read the first dead letter of each queue, which takes messages out of the queue for a moment.
    """

    def __init__(  # noqa: PLR0913 - all keywords
        self,
        app: Celery,
        *,
        queues: Iterable[str] = (),
        management_url: str | None = None,
        check_seconds: float = 60.0,
        peeks: bool = False,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._app, self._queues, self._management_url = app, tuple(queues), management_url
        self._check_seconds, self._peeks, self._now_ms = check_seconds, peeks, now_ms
        self._stack = ExitStack()
        self._session: BrokerSession | None = None
        self._plan: _Plan | None = None
        self._ages: dict[str, LaneAge] = {}

    def read(self) -> Observation:
        """Return what is in the queues now. Raise BrokerUnavailable, or another DLXError, if that fails."""
        try:
            if self._session is None:
                self._session = self._stack.enter_context(
                    open_session(self._app, queues=self._queues, management_url=self._management_url)
                )
            with broker_errors(self._app):
                return self._read(self._session)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the session. The next reading opens a new one; the history of the lanes stays."""
        self._session = self._plan = None
        with self._stack:
            self._stack = ExitStack()

    def _read(self, session: BrokerSession) -> Observation:
        if self._plan is None or time.monotonic() >= self._plan.until:
            self._plan = self._checked(session)
        plan, now_ms = self._plan, self._now_ms()
        facts = session.management.queues() if session.management else None
        orphans = session.names.orphans()
        found = (
            _from_api(facts)
            if facts is not None
            else _from_amqp(session, [*plan.work_queues, *plan.dead_letter_queues, orphans])
        )
        lanes = [lane for name in facts or () if (lane := session.names.lane_of(name))]
        return Observation(
            read_at_ms=now_ms,
            broker_version=".".join(map(str, _server(session).numbers)),
            no_management=session.no_management,
            work_queues=tuple(
                WorkQueueCount(queue=name, messages=found[name][0], consumers=found[name][1])
                for name in plan.work_queues
                if name in found
            ),
            dead_letters=tuple(
                DeadLetterCount(
                    queue=of[0] if len(of) == 1 else name,
                    dead_letter_queue=name,
                    messages=found[name][0],
                    oldest_ms=plan.oldest_ms.get(name) if found[name][0] else None,
                )
                for name, of in plan.dead_letter_queues.items()
                if name in found
            ),
            orphans=found[orphans][0] if orphans in found else None,
            waiting=None if facts is None else _waiting(lanes, found),
            overdue_ms=self._overdue_ms(lanes, facts or {}, now_ms),
            missing=plan.missing,
            findings=plan.findings,
        )

    def _checked(self, session: BrokerSession) -> _Plan:
        diagnosis, missing = diagnose_quietly(session)
        work = sorted({*(queue.name for queue in session.work_queues), *session.on_broker().work})
        dead = session.dead_letter_queues()
        oldest_ms = {}
        if self._peeks:
            facts = session.management.queues() if session.management else {}
            for name in dead:
                kind = type_in_api(facts, name) if name in facts else session.names.kind
                oldest_ms[name] = oldest_dead_letter_ms(session.connection, name, kind)
        return _Plan(
            until=time.monotonic() + self._check_seconds,
            missing=missing,
            findings=diagnosis.findings,
            work_queues=work,
            dead_letter_queues=dead,
            oldest_ms=oldest_ms,
        )

    def _overdue_ms(self, lanes: list[Lane], facts: Mapping[str, dict[str, Any]], now_ms: int) -> dict[str, int]:
        overdue: dict[str, int] = {}
        ages: dict[str, LaneAge] = {}
        for lane in lanes:
            row = facts[lane.name]
            # The broker itself moves messages into a rung, and does not count that as a publish.
            if lane.is_rung or "messages" not in row or "published" not in row:
                continue
            age = ages[lane.name] = self._ages.get(lane.name) or LaneAge(lane.delay_ms)
            late_ms = age.add(now_ms=now_ms, messages=row["messages"], published=row["published"])
            overdue[label_of(lane)] = max(late_ms, overdue.get(label_of(lane), 0))
        self._ages = ages
        return overdue


def label_of(lane: Lane) -> str:
    """Return the delay of a lane as a label: ``60s``, ``0.5s``. All parts of the ladder have one label."""
    return LADDER if lane.is_rung else f"{lane.delay_ms / 1000:.3f}".rstrip("0").rstrip(".") + "s"


def _server(session: BrokerSession) -> Server:
    return Server.of(session.connection.connection.server_properties)


def _from_api(facts: Mapping[str, dict[str, Any]]) -> dict[str, tuple[int, int]]:
    """Return messages and consumers. Messages that another process holds, such as `celery dlx dead list`, count."""
    return {name: (row["messages"], row.get("consumers", 0)) for name, row in facts.items() if "messages" in row}


def _from_amqp(session: BrokerSession, names: Iterable[str]) -> dict[str, tuple[int, int]]:
    return {name: (it.ready, it.consumers) for name, it in counts(session.connection, names).items()}


def _waiting(lanes: Iterable[Lane], found: Mapping[str, tuple[int, int]]) -> tuple[WaitingCount, ...]:
    total: Counter[tuple[str, str]] = Counter()
    for lane in lanes:
        if lane.name in found:
            total[lane.queue, label_of(lane)] += found[lane.name][0]
    return tuple(WaitingCount(queue=queue, lane=lane, messages=count) for (queue, lane), count in total.items())
