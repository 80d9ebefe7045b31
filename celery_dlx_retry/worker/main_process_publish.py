"""Publish retries from the worker's main process, whose event loop must not stand still for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from celery.concurrency import prefork, solo
from celery.worker import state

from celery_dlx_retry.app.context import QUICK_MS
from celery_dlx_retry.broker.async_publisher import Pipeline
from celery_dlx_retry.errors import PublishError, TopologyError, Unpublishable, Unroutable

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_dlx_retry.app.context import AppContext
    from celery_dlx_retry.errors import DLXError
    from celery_dlx_retry.topology.names import WorkQueue
    from celery_dlx_retry.topology.wait_route import WaitRoute
    from celery_dlx_retry.wire.message import PreparedRetry

    Then = Callable[[DLXError | None], None]


def open_pipeline(context: AppContext) -> None:
    """Let the worker's main process publish retries, if its event loop takes the results of the pool."""
    consumer = context.consumer
    if consumer.hub is not None and isinstance(consumer.pool, (prefork.TaskPool, solo.TaskPool)):
        context.pipeline = Pipeline(
            context.connect_quickly,
            hub=consumer.hub,
            confirm_timeout_ms=context.settings.confirm_timeout_ms,
            write_timeout_ms=min(context.settings.confirm_timeout_ms, QUICK_MS),
            probe_at=context.names.lanes(),
        )


def close_pipeline(context: AppContext) -> None:
    """Close it. A message whose confirm comes soon is acknowledged; the others run again."""
    pipeline, context.pipeline = context.pipeline, None
    if pipeline is not None:
        if state.should_stop is not None:
            pipeline.drain(within=QUICK_MS / 1000)
        pipeline.close()


def can_forward(context: AppContext) -> bool:
    """Whether there is an event loop that hears of confirms, and goes on doing so.

    A cold shutdown handles results inside a signal handler, perhaps in the middle of a frame of this very connection.
    """
    return context.pipeline is not None and state.should_stop is None and state.should_terminate is None


def forward(context: AppContext, parcel: PreparedRetry, queue: WorkQueue, then: Then) -> None:
    """Publish a retry; call ``then`` once, with the problem if the broker is not known to have the message."""
    there = context.lanes.plain(queue, parcel.length_ms) if can_forward(context) else None
    if there is None:
        then(_publish_now(context, parcel, queue))
    else:
        _Forward(context=context, parcel=parcel, queue=queue, there=there, then=then).start()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Forward:
    """One retry on its way into its lane."""

    context: AppContext
    parcel: PreparedRetry
    queue: WorkQueue
    there: WaitRoute
    then: Then

    def start(self) -> None:
        # If work queues share the lane, a publish to a missing one closes the channel, and the result of every publish
        # beside it is unknown then. So a lane that is not known to exist is made first.
        if self.context.lanes.knows(self.there):
            self._publish(self._on_result)
        else:
            self._make_lane()

    def _publish(self, then: Then) -> None:
        pipeline = self.context.pipeline if can_forward(self.context) else None
        if pipeline is None:
            then(_publish_now(self.context, self.parcel, self.queue))
        else:
            there = self.there
            pipeline.publish(self.parcel.message, exchange=there.exchange, routing_key=there.routing_key, then=then)

    def _on_result(self, problem: DLXError | None) -> None:
        if isinstance(problem, Unroutable) and can_forward(self.context):
            # The broker says that no queue has it: this is no blind second publish.
            self.context.lanes.forget(self.there)
            self._make_lane()
        elif isinstance(problem, Unpublishable):
            # The broker may take longer bodies by now. It is asked over a connection that no other message is on.
            self.then(_publish_now(self.context, self.parcel, self.queue))
        else:
            self.then(problem)

    def _make_lane(self) -> None:
        """Make the lane in steps: a new quorum queue gets time to settle, and the event loop does not wait for it."""
        try:
            with self.context.quick_publisher.connection() as connection:
                pause = self.context.lanes.make(connection, self.there)
        except (PublishError, TopologyError) as problem:
            self.then(problem)
            return
        if pause:
            self.context.consumer.timer.call_after(pause, self._make_lane)
        else:
            self._publish(self.then)


def _publish_now(context: AppContext, parcel: PreparedRetry, queue: WorkQueue) -> DLXError | None:
    try:
        context.publish_retry(parcel, queue, quickly=True)
    except (PublishError, TopologyError, Unpublishable) as problem:
        return problem
    return None
