"""Lanes that expire: declare them again before they could go with a message in them.

RabbitMQ deletes a queue that nobody has used for x-expires, whatever is in it, and a publish is no use; a declare is
(test_the_naive_recipe_loses_what_is_in_the_lane). So before each publish

    age of our last declare + TTL + margin < x-expires

must hold. x-expires is the TTL and ``expires_ms``, which leaves: age < expires_ms - margin. Only on classic queues: a
quorum queue is not renewed by anything that a publisher can do.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from celery_dlx_retry.broker.lanes import make_missing_lanes

if TYPE_CHECKING:
    from celery_dlx_retry.broker.sync_publisher import Publisher
    from celery_dlx_retry.topology.names import Names
    from celery_dlx_retry.topology.specs import Topology


class LaneRenewal:
    """When this process last declared which lane; others do the same for themselves."""

    def __init__(self, *, lease_ms: int) -> None:
        self._lease_seconds = lease_ms / 1000
        self._declared_at: dict[str, float] = {}

    def renew(self, publisher: Publisher, names: Names, lane: Topology) -> None:
        """Declare this lane, unless we did so not long ago."""
        (queue,) = lane.queues
        now = time.monotonic()  # before the broker hears of it: a lease is never longer than we think
        if now - self._declared_at.get(queue.name, -self._lease_seconds) < self._lease_seconds:
            return
        with publisher.connection() as connection:
            make_missing_lanes(connection, names, lane)
        self._declared_at[queue.name] = now
