"""Publish retries from the worker's main process, whose event loop must not stand still for them."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from celery.worker import state

from celery_dlx_retry.errors import PublishError, TopologyError, Unroutable

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_dlx_retry.core.topology import WorkQueue
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
    """Send it on its way; ``then`` is called once, with the problem if the broker is not known to have it.

    A lane that is not known to stand is made first: a publish to a missing one closes the channel, and nobody knows
    then what became of all that was on its way beside it.
    """
    if can_forward(runtime) and not runtime.lanes.knows(parcel.length_ms):
        _make_lane(runtime, parcel, queue, then)
    else:
        _publish(runtime, parcel, queue, functools.partial(_on_told, runtime, parcel, queue, then))


def _publish(runtime: Runtime, parcel: Parcel, queue: WorkQueue, then: Then) -> None:
    pipeline = runtime.pipeline if can_forward(runtime) else None
    if pipeline is None:
        then(_publish_now(runtime, parcel, queue))
    else:
        pipeline.publish(parcel.message, exchange=parcel.exchange, routing_key=queue.name, then=then)


def _publish_now(runtime: Runtime, parcel: Parcel, queue: WorkQueue) -> DLXError | None:
    try:
        runtime.publish_retry(parcel, queue, quickly=True)
    except (PublishError, TopologyError) as problem:
        return problem
    return None


def _on_told(runtime: Runtime, parcel: Parcel, queue: WorkQueue, then: Then, problem: DLXError | None) -> None:
    if isinstance(problem, Unroutable) and can_forward(runtime):
        # The broker says that no queue has it: this is no blind second publish.
        runtime.lanes.forget(parcel.length_ms)
        _make_lane(runtime, parcel, queue, then)
    else:
        then(problem)


def _make_lane(runtime: Runtime, parcel: Parcel, queue: WorkQueue, then: Then) -> None:
    """Declare it in steps: a new quorum queue gets time to settle, which the event loop does not sit out."""
    try:
        with runtime.quick_publisher.connection() as connection:
            pause = runtime.lanes.make(connection, parcel.length_ms)
    except (PublishError, TopologyError) as problem:
        then(problem)
        return
    if pause:
        runtime.consumer.timer.call_after(pause, _make_lane, (runtime, parcel, queue, then))
    else:
        _publish(runtime, parcel, queue, then)
