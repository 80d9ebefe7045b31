"""Publish retries from the worker's main process, whose event loop must not stand still for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from celery.worker import state

from celery_dlx_retry.errors import PublishError, TopologyError, Unpublishable, Unroutable

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_dlx_retry.core.topology import WorkQueue
    from celery_dlx_retry.core.ways import Way
    from celery_dlx_retry.errors import DLXError
    from celery_dlx_retry.worker.delivery import Parcel
    from celery_dlx_retry.worker.runtime import Runtime

    Then = Callable[[DLXError | None], None]


def can_forward(runtime: Runtime) -> bool:
    """Whether there is an event loop that hears of confirms, and goes on doing so.

    A cold shutdown handles results inside a signal handler, perhaps in the middle of a frame of this very connection.
    """
    return runtime.pipeline is not None and state.should_stop is None and state.should_terminate is None


def forward(runtime: Runtime, parcel: Parcel, queue: WorkQueue, then: Then) -> None:
    """Publish a retry; call ``then`` once, with the problem if the broker is not known to have the message."""
    there = runtime.lanes.plain(queue, parcel.length_ms) if can_forward(runtime) else None
    if there is None:
        then(_publish_now(runtime, parcel, queue))
    else:
        _Forward(runtime=runtime, parcel=parcel, queue=queue, there=there, then=then).start()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Forward:
    """One retry on its way into its lane."""

    runtime: Runtime
    parcel: Parcel
    queue: WorkQueue
    there: Way
    then: Then

    def start(self) -> None:
        # If work queues share the lane, a publish to a missing one closes the channel, and the result of every publish
        # beside it is unknown then. So a lane that is not known to exist is made first.
        if self.runtime.lanes.knows(self.there):
            self._publish(self._on_result)
        else:
            self._make_lane()

    def _publish(self, then: Then) -> None:
        pipeline = self.runtime.pipeline if can_forward(self.runtime) else None
        if pipeline is None:
            then(_publish_now(self.runtime, self.parcel, self.queue))
        else:
            there = self.there
            pipeline.publish(self.parcel.message, exchange=there.exchange, routing_key=there.routing_key, then=then)

    def _on_result(self, problem: DLXError | None) -> None:
        if isinstance(problem, Unroutable) and can_forward(self.runtime):
            # The broker says that no queue has it: this is no blind second publish.
            self.runtime.lanes.forget(self.there)
            self._make_lane()
        elif isinstance(problem, Unpublishable):
            # The broker may take longer bodies by now. It is asked over a connection that no other message is on.
            self.then(_publish_now(self.runtime, self.parcel, self.queue))
        else:
            self.then(problem)

    def _make_lane(self) -> None:
        """Make the lane in steps: a new quorum queue gets time to settle, and the event loop does not wait for it."""
        try:
            with self.runtime.quick_publisher.connection() as connection:
                pause = self.runtime.lanes.make(connection, self.there)
        except (PublishError, TopologyError) as problem:
            self.then(problem)
            return
        if pause:
            self.runtime.consumer.timer.call_after(pause, self._make_lane)
        else:
            self._publish(self.then)


def _publish_now(runtime: Runtime, parcel: Parcel, queue: WorkQueue) -> DLXError | None:
    try:
        runtime.publish_retry(parcel, queue, quickly=True)
    except (PublishError, TopologyError, Unpublishable) as problem:
        return problem
    return None
