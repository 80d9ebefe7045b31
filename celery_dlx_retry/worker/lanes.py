"""What a process knows of lanes, and how it makes one without waiting."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from celery_dlx_retry.broker.declare import SETTLE_SECONDS, begin, check, finish
from celery_dlx_retry.core.ladder import Ladder
from celery_dlx_retry.core.lanes import lane_ms
from celery_dlx_retry.core.topology import lane
from celery_dlx_retry.core.ways import TakeLane, way

if TYPE_CHECKING:
    from kombu.connection import Connection

    from celery_dlx_retry.core.settings import Settings
    from celery_dlx_retry.core.topology import Names
    from celery_dlx_retry.core.ways import Way


class Lanes:
    """Those for retries, by their length in ms; ``announced`` ones are declared at a worker's start."""

    def __init__(self, settings: Settings, names: Names, *, announced: frozenset[int]) -> None:
        self._settings, self._names, self._announced = settings, names, announced
        self._ladder = Ladder.of(settings)
        self._plain: dict[int, Way] = {}
        self._seen: set[int] = set()
        self._young: dict[int, float] = {}

    def plain(self, delay_ms: int) -> Way | None:
        """The lane of a retry, if there is no more to it: it is never full, and does not expire."""
        settings = self._settings
        length = lane_ms(delay_ms, exact=self._announced, ratio=settings.grid, limit_ms=settings.max_delay_ms)
        expires = bool(settings.lane_expires_ms) and length not in self._announced
        if settings.max_waiting is not None or expires:
            return None
        if length not in self._plain:
            self._plain[length] = way(TakeLane(length), self._names, ladder=self._ladder)
        return self._plain[length]

    def knows(self, length_ms: int) -> bool:
        """Whether it is known to stand."""
        return length_ms in self._announced or length_ms in self._seen

    def saw(self, length_ms: int) -> None:
        """It took a message."""
        self._seen.add(length_ms)

    def forget(self, length_ms: int) -> None:
        """It is gone."""
        self._seen.discard(length_ms)

    def make(self, connection: Connection, length_ms: int) -> float:
        """Declare a plain one a step further: 0 if it stands, else this is to be called again after so many seconds."""
        needs = lane(self._names, length_ms)
        made_at = self._young.get(length_ms)
        if not self._settings.declare:
            check(connection, needs)
        elif made_at is not None:
            if (left := made_at + SETTLE_SECONDS - time.monotonic()) > 0:
                return left
            finish(connection, needs)
            del self._young[length_ms]
        elif not begin(connection, needs):
            self._young[length_ms] = time.monotonic()
            return SETTLE_SECONDS
        self._seen.add(length_ms)
        return 0.0
