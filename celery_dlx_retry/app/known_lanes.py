"""The lanes that a process publishes retries to, and how the main process makes one without waiting."""

from __future__ import annotations

import functools
import time
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from celery_dlx_retry.broker.declare import ANSWER_SECONDS, check
from celery_dlx_retry.broker.lanes import BUSY_SECONDS, LaneCreation, make_lanes
from celery_dlx_retry.errors import LanesBusy, NoAnswer
from celery_dlx_retry.topology.ladder import Ladder
from celery_dlx_retry.topology.lanes import lane_ms
from celery_dlx_retry.topology.specs import Topology
from celery_dlx_retry.topology.wait_route import LaneRoute, route

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from kombu.connection import Connection

    from celery_dlx_retry.settings import Settings
    from celery_dlx_retry.topology.names import Names, WorkQueue
    from celery_dlx_retry.topology.wait_route import WaitRoute

_SILENT_SECONDS = 300.0
_MOST_DELAYS = 1_000
_short_waits = 0


@contextmanager
def short_waits() -> Iterator[None]:
    """Let every retry of this process wait in the shortest lane; ``celery_dlx_retry.testing`` uses it.

    Its message and events have the decided delay. The rest of the way is the same as in production.
    """
    global _short_waits  # noqa: PLW0603 - one mode for all apps of the process
    _short_waits += 1
    try:
        yield
    finally:
        _short_waits -= 1


def waits_are_short() -> bool:
    """Return whether this process is in such a block."""
    return _short_waits > 0


class Lanes:
    """Lanes for retries, by work queue and length in ms; a worker makes ``announced`` ones at its start."""

    def __init__(self, settings: Settings, names: Names, *, announced: frozenset[int]) -> None:
        self._settings, self._names, self._announced = settings, names, announced
        self._ladder = Ladder.of(settings)
        self._plain: dict[tuple[str, int], WaitRoute] = {}
        #: Every retry asks for the length of its lane three times.
        self._plain_length = functools.lru_cache(_MOST_DELAYS)(self._plain_lane_ms)
        #: The lanes that this process has seen to exist, by exchange and routing key.
        self.seen: set[tuple[str, str]] = set()
        self._making: dict[str, LaneCreation] = {}
        self._silent: dict[str, float] = {}

    def plain(self, queue: WorkQueue, delay_ms: int) -> WaitRoute | None:
        """Return the lane of a retry if it has no length limit and does not expire, else None."""
        length = self._plain_length(delay_ms)
        if length is None:
            return None
        if _short_waits:
            shortest = self._plain_length(0)
            return None if shortest is None else replace(self._way(queue, shortest), length_ms=delay_ms)
        return self._way(queue, self.answering_ms(queue, length))

    def answering_ms(self, queue: WorkQueue, length_ms: int) -> int:
        """Return the length of the lane, or of the next longer one while its queue exists and does not answer."""
        settings = self._settings
        while self._silent and self._is_silent(self._way(queue, length_ms)) and length_ms < settings.max_delay_ms:
            length_ms = lane_ms(length_ms + 1, exact=frozenset(), ratio=settings.grid, limit_ms=settings.max_delay_ms)
        return length_ms

    def _plain_lane_ms(self, delay_ms: int) -> int | None:
        settings = self._settings
        length = lane_ms(delay_ms, exact=self._announced, ratio=settings.grid, limit_ms=settings.max_delay_ms)
        expires = bool(settings.lane_expires_ms) and length not in self._announced
        return None if settings.max_waiting is not None or expires else length

    def _way(self, queue: WorkQueue, length_ms: int) -> WaitRoute:
        key = queue.name, length_ms
        if key not in self._plain:
            self._plain[key] = route(LaneRoute(length_ms), self._names, queue, ladder=self._ladder)
        return self._plain[key]

    def expects(self, there: WaitRoute) -> bool:
        """Return whether the main process knows the lane or makes it: a pool process need not."""
        return there.length_ms in self._announced or self.knows(there)

    def knows(self, there: WaitRoute) -> bool:
        """Return whether this process has seen that the lane exists."""
        return (there.exchange, there.routing_key) in self.seen

    def saw(self, there: WaitRoute) -> None:
        """Remember that the lane took a message."""
        self.seen.add((there.exchange, there.routing_key))

    def saw_announced(self, queues: Iterable[WorkQueue]) -> None:
        """Remember that the announced lanes of these work queues exist."""
        routes = (self._way(queue, length_ms) for queue in queues for length_ms in self._announced)
        self.seen.update((route.exchange, route.routing_key) for route in routes)

    def forget(self, there: WaitRoute) -> None:
        """Remember that the lane is gone."""
        self.seen.discard((there.exchange, there.routing_key))

    def make(self, connection: Connection, there: WaitRoute) -> float:
        """Do the next step to make a plain lane; return 0 if it exists now, else the seconds until the next step."""
        # Many retries may wait for this lane, and each of them comes here.
        if self.knows(there):
            return 0.0
        lane = there.lane or Topology()  # only a way over the ladder has none, and that is not plain
        if not self._settings.declare:
            check(connection, lane)
            self.saw(there)
            return 0.0
        if self._is_silent(there):
            raise NoAnswer(name=lane.queues[0].name, seconds=ANSWER_SECONDS)
        # An error ends this attempt: the next retry starts from the beginning.
        making = self._making.pop(there.place, None) or LaneCreation(connection, self._names, lane)
        try:
            left = making.advance(connection)
        except LanesBusy:
            left = BUSY_SECONDS
        except NoAnswer:
            self._leave_out(there)
            raise
        if left:
            self._making[there.place] = making
        else:
            self.saw(there)
        return left

    def make_now(self, connection: Connection, there: WaitRoute, *, within: float) -> None:
        """Make the lane and wait for it, and that many seconds for the lock. The ladder has no lane."""
        if there.lane is None:
            return
        try:
            make_lanes(connection, self._names, there.lane, within=within)
        except NoAnswer:
            self._leave_out(there)
            raise

    def _is_silent(self, there: WaitRoute) -> bool:
        return self._silent.get(there.place, 0.0) > time.monotonic()

    def _leave_out(self, there: WaitRoute) -> None:
        self._silent[there.place] = time.monotonic() + _SILENT_SECONDS
