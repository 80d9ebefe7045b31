"""Settle a delivery: publish, confirmed, acknowledge. This module alone does it, in every process of a worker.

A retry, a dead letter and a parked message end here, and so does what timed out, crashed or cannot be processed. If the
broker does not confirm the message, the delivery goes back to its queue: a task may run twice, and none is lost.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from celery.exceptions import SoftTimeLimitExceeded
from celery.utils.log import get_logger

from celery_dlx_retry.app.clock import now_ms
from celery_dlx_retry.deadletters.event import dead_lettered
from celery_dlx_retry.errors import PublishError, TopologyError, Unpublishable, Unroutable
from celery_dlx_retry.events import GivenBack, Parked, RetryScheduled, emit, with_written_headers
from celery_dlx_retry.topology.wait_route import WaitKind
from celery_dlx_retry.values.log_lines import escaped, log_fields
from celery_dlx_retry.wire.header_size import carried
from celery_dlx_retry.wire.headers import PARKED_AT, with_address
from celery_dlx_retry.wire.message import bare
from celery_dlx_retry.worker.dead_letter import death_record

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from celery_dlx_retry.app.context import AppContext
    from celery_dlx_retry.broker.outbox import Problem, Then
    from celery_dlx_retry.events import DeadLettered, Event
    from celery_dlx_retry.policy.reasons import Reason
    from celery_dlx_retry.topology.names import WorkQueue
    from celery_dlx_retry.topology.wait_route import WaitRoute
    from celery_dlx_retry.wire.message import Message
    from celery_dlx_retry.worker.outcome import Retry

logger = escaped(get_logger(__name__))


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """One received message, and what is left to do with its delivery."""

    context: AppContext
    message: Message
    queue: WorkQueue
    task: str
    task_id: str
    worker: str
    #: Called when the broker has confirmed what the message has become. A pool process notes it for the main process.
    acknowledge: Callable[[Event], object]
    #: Called with the problem when the broker has not: the delivery must go back to its queue.
    give_back: Callable[[Any], object]
    #: The event loop of the main process must not wait long.
    is_main: bool = False
    #: When the message was given to this module, by a clock that nobody sets.
    begun: float = field(default_factory=time.monotonic)

    def passed_ms(self) -> float:
        """Return how long it has taken so far."""
        return (time.monotonic() - self.begun) * 1000


def settle_retry(delivery: Delivery, retry: Retry, *, route: WaitRoute | None = None) -> None:
    """Let a message wait in a lane. In the main process the event loop hears of the confirm, wherever it can."""
    context, queue = delivery.context, delivery.queue
    message = retry.message or replace(delivery.message, headers=retry.headers or {})

    def then(problem: BaseException | None) -> None:
        if problem is None:
            retry_is_out(delivery, retry)
        else:
            delivery.give_back(problem)

    lane = context.lanes.plain(queue, retry.delay_ms) if delivery.is_main and can_call_back(context) else None
    if lane is None:
        then(_problem_in_lane(delivery, message, retry.delay_ms, route=route))
    else:
        _IntoLane(delivery=delivery, message=message, lane=lane, then=then).start()


def retry_is_out(delivery: Delivery, retry: Retry) -> None:
    """Go on when the broker has confirmed a retry."""
    _end(
        delivery,
        RetryScheduled(
            task=delivery.task,
            task_id=delivery.task_id,
            queue=delivery.queue.name,
            retry=retry.number,
            delay_ms=retry.delay_ms,
            error_type=retry.error.partition(":")[0],
            error=retry.error,
            worker=delivery.worker,
            way=delivery.context.lanes.way(retry.delay_ms),
            confirm_ms=delivery.passed_ms(),
        ),
    )


def settle_dead(
    delivery: Delivery, *, reason: Reason, error: BaseException, fault: BaseException | None = None
) -> None:
    """Make a message a dead letter."""
    record = death_record(delivery, reason=reason, error=error, fault=fault)
    context, message, queue = delivery.context, delivery.message, delivery.queue
    try:
        # A body can change a header of its message in place into one that AMQP cannot carry.
        headers = with_written_headers(
            carried(message.headers),
            kind="dead-letter",
            task=record.task,
            task_id=record.task_id,
            queue=record.queue,
            attempts=record.attempts,
            error=record.error_type,
            reason=str(reason),
        )
        letter = message.with_headers(headers)
        try:
            context.publish_dead(letter, queue, record, quickly=delivery.is_main)
        except Unpublishable as problem:
            # The fault of the message: without an end it would come back for ever, and hold up what comes behind it.
            logger.warning(
                "dead letter without its headers task=%s id=%s: %s",
                record.task, record.task_id, problem,
                extra=log_fields("HeadersDropped", task=record.task, task_id=record.task_id, queue=queue.name),
            )  # fmt: skip
            context.publish_dead(bare(message), queue, record, quickly=delivery.is_main)
    except (PublishError, TopologyError, Unpublishable, SoftTimeLimitExceeded) as problem:
        _note_pace(delivery, problem)
        delivery.give_back(problem)
        return
    _note_pace(delivery, None)
    _end(delivery, dead_lettered(record, confirm_ms=delivery.passed_ms()))


def settle_parked(delivery: Delivery, *, delay_ms: int, address: Mapping[str, Any]) -> None:
    """Let a message wait that does not run now, as it is and with the time."""
    queue = delivery.queue
    headers = with_address(
        delivery.message.headers,
        exchange=address.get("exchange"),
        routing_key=address.get("routing_key"),
        queue=queue.name,
    )
    message = delivery.message.with_headers({**headers, PARKED_AT: now_ms()})
    problem = _problem_in_lane(delivery, message, delay_ms)
    if problem is not None:
        delivery.give_back(problem)
        return
    _end(
        delivery,
        Parked(
            task=delivery.task, task_id=delivery.task_id, queue=queue.name, delay_ms=delay_ms, worker=delivery.worker
        ),
    )


def _end(delivery: Delivery, event: Event) -> None:
    try:
        emit(event)
    finally:  # a subscriber may end the process
        delivery.acknowledge(event)


def facts_of(letter: DeadLettered) -> dict[str, Any]:
    """Return what Celery's event task-dead-lettered says."""
    return {name: getattr(letter, name) for name in ("reason", "queue", "attempts", "group")}


def emit_given_back(*, task: str, task_id: Any, queue: str, worker: Any, problem: BaseException) -> None:
    """Emit the event of a delivery that goes back to its queue."""
    emit(GivenBack(task=task, task_id=task_id, queue=queue, problem=problem, worker=str(worker or "")))


def can_call_back(context: AppContext) -> bool:
    """Return whether there is an event loop that hears of confirms, and goes on doing so.

    A cold shutdown handles results inside a signal handler, perhaps in the middle of a frame of this very connection.
    """
    if context.pipeline is None:
        return False
    from celery.worker import state  # noqa: PLC0415 - a process that only sends must not import it

    return state.should_stop is None and state.should_terminate is None


def _problem_in_lane(
    delivery: Delivery, message: Message, delay_ms: int, *, route: WaitRoute | None = None
) -> BaseException | None:
    """Publish into a lane and wait for the confirm; return the problem if there is none."""
    context = delivery.context
    problems: list[BaseException | None] = []
    try:
        if route is None:
            route = context.wait_route(delivery.queue, delay_ms, wish=WaitKind.RETRY, quickly=delivery.is_main)
        outbox = context.outbox_for(route, quickly=delivery.is_main)
        outbox.publish(message, exchange=route.exchange, routing_key=route.routing_key, then=problems.append)
        if problems == [None]:
            context.published(route)
    except (PublishError, TopologyError, SoftTimeLimitExceeded) as problem:
        problems = problems or [problem]
    _note_pace(delivery, problems[0])
    return problems[0]


def _note_pace(delivery: Delivery, problem: BaseException | None) -> None:
    """Let the event loop of the main process rest after a publish that failed and held it up."""
    if delivery.is_main and problem is None:
        delivery.context.quick_pace.succeeded()
    elif delivery.is_main and isinstance(problem, (PublishError, TopologyError)):
        delivery.context.quick_pace.failed()


@dataclass(frozen=True, slots=True, kw_only=True)
class _IntoLane:
    """One retry on its way into its lane, from the event loop of the main process."""

    delivery: Delivery
    message: Message
    lane: WaitRoute
    then: Then

    def start(self) -> None:
        # If work queues share the lane, a publish to a missing one closes the channel, and the result of every publish
        # beside it is unknown then. So a lane that is not known to exist is made first.
        if self.delivery.context.lanes.knows(self.lane):
            self._publish(self._on_result)
        else:
            self._make_lane()

    def _publish(self, then: Then) -> None:
        context, lane = self.delivery.context, self.lane
        if context.pipeline is None or not can_call_back(context):
            self._publish_and_wait(then)
        else:
            context.pipeline.publish(self.message, exchange=lane.exchange, routing_key=lane.routing_key, then=then)

    def _publish_and_wait(self, then: Then) -> None:
        then(_problem_in_lane(self.delivery, self.message, self.lane.length_ms))  # type: ignore[arg-type]

    def _on_result(self, problem: Problem | None) -> None:
        context = self.delivery.context
        if problem is None:
            if context.paces.by_place:
                context.paces.reached(self.lane.place)
            self.then(None)
        elif isinstance(problem, Unroutable) and can_call_back(context):
            # The broker says that no queue has it: this is no blind second publish.
            context.lanes.forget(self.lane)
            self._make_lane()
        elif isinstance(problem, Unpublishable):
            # The broker may take longer bodies by now. It is asked over a connection that no other message is on.
            self._publish_and_wait(self.then)
        else:
            self.then(problem)

    def _make_lane(self) -> None:
        """Make the lane in steps: a new quorum queue gets time to settle, and the event loop does not wait for it."""
        context = self.delivery.context
        try:
            with context.quick_publisher.connection() as connection:
                pause = context.lanes.make(connection, self.lane)
        except (PublishError, TopologyError) as problem:
            self.then(problem)
            return
        if pause:
            context.consumer.timer.call_after(pause, self._make_lane)
        else:
            self._publish(self.then)
