"""The lanes that a process publishes retries to, and how the main process makes one without waiting."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from celery_dlx_retry.broker.declare import ANSWER_SECONDS, check
from celery_dlx_retry.broker.lanes import BUSY_SECONDS, LanesInTheMaking
from celery_dlx_retry.core.ladder import Ladder
from celery_dlx_retry.core.lanes import lane_ms
from celery_dlx_retry.core.ways import TakeLane, way
from celery_dlx_retry.errors import LanesBusy, NoAnswer

if TYPE_CHECKING:
    from kombu.connection import Connection

    from celery_dlx_retry.core.settings import Settings
    from celery_dlx_retry.core.topology import Names, WorkQueue
    from celery_dlx_retry.core.ways import Way

_SILENT_SECONDS = 300.0


class Lanes:
    """Lanes for retries, by work queue and length in ms; a worker makes ``announced`` ones at its start."""

    def __init__(self, settings: Settings, names: Names, *, announced: frozenset[int]) -> None:
        self._settings, self._names, self._announced = settings, names, announced
        self._ladder = Ladder.of(settings)
        self._plain: dict[tuple[str, int], Way] = {}
        self._seen: set[str] = set()
        self._making: dict[str, LanesInTheMaking] = {}
        self._silent: dict[str, float] = {}

    def plain(self, queue: WorkQueue, delay_ms: int) -> Way | None:
        """Return the lane of a retry if it has no length limit and does not expire, else None.

        A lane whose queue exists and does not answer is left out for a while: the next longer one takes its messages.
        """
        settings = self._settings
        length = lane_ms(delay_ms, exact=self._announced, ratio=settings.grid, limit_ms=settings.max_delay_ms)
        expires = bool(settings.lane_expires_ms) and length not in self._announced
        if settings.max_waiting is not None or expires:
            return None
        there = self._way(queue, length)
        while self._silent and self._silent.get(there.place, 0.0) > time.monotonic() and length < settings.max_delay_ms:
            length = lane_ms(length + 1, exact=frozenset(), ratio=settings.grid, limit_ms=settings.max_delay_ms)
            there = self._way(queue, length)
        return there

    def place(self, queue: WorkQueue, delay_ms: int) -> str:
        """Return a name for the plain lane of this delay; empty if there is none."""
        there = self.plain(queue, delay_ms)
        return "" if there is None else there.place

    def _way(self, queue: WorkQueue, length_ms: int) -> Way:
        key = queue.name, length_ms
        if key not in self._plain:
            self._plain[key] = way(TakeLane(length_ms), self._names, queue, ladder=self._ladder)
        return self._plain[key]

    def knows(self, there: Way) -> bool:
        """Return whether the lane is known to exist."""
        return there.length_ms in self._announced or there.place in self._seen

    def saw(self, there: Way) -> None:
        """Remember that the lane took a message."""
        self._seen.add(there.place)

    def forget(self, there: Way) -> None:
        """Remember that the lane is gone."""
        self._seen.discard(there.place)

    def make(self, connection: Connection, there: Way) -> float:
        """Do the next step to make a plain lane; return 0 if it exists now, else the seconds until the next step."""
        lane = there.lane
        if lane is None or not self._settings.declare:
            check(connection, there.needs if lane is None else lane)
            return 0.0
        # Many retries may wait for this lane, and each of them comes here.
        if there.place in self._seen:
            return 0.0
        if self._silent.get(there.place, 0.0) > time.monotonic():
            raise NoAnswer(name=lane.queues[0].name, seconds=ANSWER_SECONDS)
        # An error ends this attempt: the next retry starts from the beginning.
        making = self._making.pop(there.place, None) or LanesInTheMaking(connection, self._names, lane)
        try:
            left = making.go_on(connection)
        except LanesBusy:
            left = BUSY_SECONDS
        except NoAnswer:
            self._silent[there.place] = time.monotonic() + _SILENT_SECONDS
            raise
        if left:
            self._making[there.place] = making
        else:
            self._seen.add(there.place)
        return left
