"""Lanes on the broker: find them, make them, and delete those that are no longer used.

Only this module binds a lane, and only while it holds the lock of broker/lane_lock.py.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from celery_dlx_retry.broker.declare import SETTLE_SECONDS, bind, declare_queues, exists, require_answers
from celery_dlx_retry.broker.lane_lock import LaneLock
from celery_dlx_retry.broker.peek import counts
from celery_dlx_retry.errors import LanesBusy
from celery_dlx_retry.topology.specs import QueueSpec, Topology

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kombu.connection import Connection

    from celery_dlx_retry.broker.management import Management
    from celery_dlx_retry.topology.names import Lane, Names

# Another process holds the lock for milliseconds; how soon to look again, and how long to try.
BUSY_SECONDS = 0.1
MAKE_SECONDS = 30.0


def existing_lanes(
    connection: Connection, names: Names, *, possible: Iterable[str], management: Management | None
) -> list[Lane]:
    """Return all lanes and rungs that exist, shortest first.

    AMQP has no list of queues. Without the HTTP API this asks for each possible name, a millisecond each, and the
    broker writes a log line for each that does not exist.
    """
    queues = management.queues() if management is not None else counts(connection, possible)
    lanes = (names.lane_of(name) for name in queues)
    return sorted((it for it in lanes if it), key=lambda it: (it.is_rung, it.delay_ms, it.queue, it.kind))


def make_missing_lanes(connection: Connection, names: Names, lanes: Topology) -> None:
    """Make those of these lanes whose queues or exchanges do not exist; check the arguments of the others.

    A queue that exists may still be unbound: a process may have died while it made the lane, or `prune` is about to
    delete it. The first message for it finds no route then, and make_lanes() binds it. A missing exchange is worse: the
    first message for it closes its channel, and the result of every publish beside it is unknown then.
    """
    missing = {it.name for it in lanes.queues if not _exists(connection, it.name)}
    missing_exchanges = {it.name for it in lanes.exchanges if not exists(connection, Topology(exchanges=(it,)))}
    missing |= {it.queue for it in lanes.bindings if it.exchange in missing_exchanges}
    declare_queues(connection, Topology(queues=tuple(it for it in lanes.queues if it.name not in missing)))
    if missing:
        make_lanes(connection, names, _only(lanes, missing))


def make_lanes(connection: Connection, names: Names, lanes: Topology, *, within: float = MAKE_SECONDS) -> None:
    """Declare and bind these lanes, also if they exist; wait for them, and that many seconds for the lock."""
    creation = LaneCreation(connection, names, lanes)
    deadline = time.monotonic() + within
    while True:
        try:
            if not (pause := creation.advance(connection)):
                return
        except LanesBusy:
            if time.monotonic() > deadline:
                raise
            pause = BUSY_SECONDS
        time.sleep(pause)  # noqa: TID251 - the broker does not say when a queue has settled, or a lock is free


class LaneCreation:
    """Makes lanes in steps, for an event loop that must not wait: call ``advance()`` until it returns 0.

    A quorum queue gets time to settle before it is bound: see SETTLE_SECONDS. The age of a queue that exists is not
    known, so it gets the same time. `prune` may delete a queue that is not bound yet: it is declared again then.
    """

    def __init__(self, connection: Connection, names: Names, lanes: Topology) -> None:
        self._names, self._lanes, self._not_before = names, lanes, 0.0
        self._declare(connection)

    def advance(self, connection: Connection) -> float:
        """Bind the lanes if it is time; return 0 if they are made, else after how many seconds to call this again.

        Raise LanesBusy if another process holds the lock just now, NoAnswer if a queue does not answer.
        """
        if left := max(0.0, self._not_before - time.monotonic()):
            return left
        if self._is_whole(connection):
            # A queue whose broker crashed while it was young may exist and never answer: nothing may be sent to it.
            require_answers(connection, [it.name for it in self._lanes.queues if it.is_quorum])
            try:
                lock = LaneLock(connection, self._names)
            except LanesBusy:
                # Many retries may wait for one lane: they do not all ask again at once.
                self._not_before = time.monotonic() + BUSY_SECONDS
                raise
            try:
                if self._is_whole(connection):
                    bind(connection, self._lanes)
                    return 0.0
            finally:
                lock.release()
        self._declare(connection)
        return max(BUSY_SECONDS, self._not_before - time.monotonic())

    def _is_whole(self, connection: Connection) -> bool:
        return all(_exists(connection, it.name) for it in self._lanes.queues)

    def _declare(self, connection: Connection) -> None:
        declare_queues(connection, self._lanes)
        is_quorum = any(it.is_quorum for it in self._lanes.queues)
        self._not_before = time.monotonic() + (SETTLE_SECONDS if is_quorum else 0.0)


def _exists(connection: Connection, queue: str) -> bool:
    return exists(connection, Topology(queues=(QueueSpec(name=queue),)))


def _only(lanes: Topology, names: set[str]) -> Topology:
    bindings = tuple(it for it in lanes.bindings if it.queue in names)
    used = {it.exchange for it in bindings}
    return Topology(
        exchanges=tuple(it for it in lanes.exchanges if it.name in used),
        queues=tuple(it for it in lanes.queues if it.name in names),
        bindings=bindings,
    )
