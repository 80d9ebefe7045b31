"""The status of an app's queues: what runs, waits or is dead, and when the next task comes back."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from celery_dlx_retry.broker.queue_status import QueueState, Role, states
from celery_dlx_retry.operations.app_queues import type_in_api
from celery_dlx_retry.operations.connect import broker_errors

if TYPE_CHECKING:
    from celery_dlx_retry.operations.session import BrokerSession
    from celery_dlx_retry.settings import QueueType
    from celery_dlx_retry.topology.names import Lane

# Without the HTTP API, lanes are found by one request per possible lane: not every second.
_LANES_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """The queues at one moment: work queues, lanes, dead-letter queues, orphans."""

    queues: tuple[QueueState, ...]
    read_at_ms: int
    #: Named work queues that do not exist.
    missing: tuple[str, ...] = ()
    #: Why unacknowledged messages, rates and some queues are not known; empty if they are.
    no_management: str = ""

    def ready(self, role: Role) -> int:
        """Return how many messages are ready in all queues of a role."""
        return sum(it.ready for it in self.queues if it.role == role)

    @property
    def busy(self) -> tuple[QueueState, ...]:
        """All queues but the lanes in which nothing waits.

        A lane that a command reads may look empty, so it is among them.
        """
        return tuple(it for it in self.queues if it.role != "wait" or it.ready or it.unacked or it.consumers)

    @property
    def filled_lanes(self) -> tuple[QueueState, ...]:
        """The lanes in which something waits."""
        return tuple(it for it in self.queues if it.role == "wait" and it.ready)

    @property
    def read_lanes(self) -> tuple[str, ...]:
        """The lanes that a command reads just now. The tasks that it holds are not counted."""
        return tuple(it.queue for it in self.queues if it.role == "wait" and it.consumers)

    @property
    def next_ms(self) -> int | None:
        """When the next task comes back, in ms since 1970; None if that is not known."""
        return min((it.next_ms for it in self.queues if it.next_ms is not None), default=None)

    @property
    def is_next_certain(self) -> bool:
        """Whether the next task of every filled lane is known."""
        return all(it.next_ms is not None for it in self.filled_lanes)


class StatusReader:
    """Reads the status again and again over one session."""

    def __init__(self, session: BrokerSession) -> None:
        self._session = session
        self._lanes: list[Lane] = []
        self._lanes_until = 0.0

    def read(self) -> Status:
        """Return the status now. All messages stay in their queues."""
        with broker_errors(self._session.app):
            return self._read()

    def _read(self) -> Status:
        session = self._session
        if session.management or time.monotonic() > self._lanes_until:
            self._lanes, self._lanes_until = session.lanes(), time.monotonic() + _LANES_SECONDS
        found = tuple(
            states(
                session.connection,
                session.names,
                work_queues={queue: session.types[queue.name] for queue in session.work_queues},
                lanes=self._lanes,
                others=_other_queues(session),
                management=session.management,
            )
        )
        absent = tuple(it.queue for it in found if it.role == "work" and not it.exists)
        return Status(
            queues=found,
            read_at_ms=time.time_ns() // 1_000_000,
            missing=absent if session.named else (),
            no_management=session.no_management,
        )


def read_status(session: BrokerSession) -> Status:
    """Return the status of the session's work queues, of all lanes, dead-letter queues and orphans."""
    return StatusReader(session).read()


def _other_queues(session: BrokerSession) -> list[tuple[Role, str, QueueType]]:
    """Return work and dead-letter queues under our prefix that only ``celery worker -Q`` names."""
    found = session.on_broker()
    if session.management is None or not (found.work or found.dead):
        return []
    roles: list[tuple[Role, str]] = [*(("work", name) for name in found.work), *(("dead", name) for name in found.dead)]
    facts = session.management.queues()
    return [(role, name, type_in_api(facts, name)) for role, name in roles]
