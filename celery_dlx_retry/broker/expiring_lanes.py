"""Lanes that expire: declare them again, so that RabbitMQ does not delete them with messages in them.

RabbitMQ deletes a queue with its messages if it was not used for x-expires. A declare counts as use, a publish does not
(test_the_naive_recipe_loses_what_is_in_the_lane). So before each publish

    age of our last declare + TTL + margin < x-expires

must hold. x-expires is the TTL plus ``expires_ms``, which gives: age < expires_ms - margin. Only classic lanes expire:
a publisher cannot renew a quorum queue.
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
    """Remembers when this process last declared each lane. Every process does this for itself."""

    def __init__(self, *, lease_ms: int) -> None:
        self._lease_seconds = lease_ms / 1000
        self._declared_at: dict[str, float] = {}

    def renew(self, publisher: Publisher, names: Names, lane: Topology) -> None:
        """Declare this lane, unless its last declare is recent."""
        (queue,) = lane.queues
        now = time.monotonic()  # before the declare, so that the real lease is never shorter than ours
        if now - self._declared_at.get(queue.name, -self._lease_seconds) < self._lease_seconds:
            return
        with publisher.connection() as connection:
            make_missing_lanes(connection, names, lane)
        self._declared_at[queue.name] = now
