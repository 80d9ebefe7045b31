"""Settle a delivery: publish, confirmed, acknowledge. This module alone does it, in every process of a worker.

A retry, a dead letter and a parked message end here, and so does what timed out, crashed or cannot be processed. If the
broker does not confirm the message, the delivery goes back to its queue: a task may run twice, and none is lost.
"""

from __future__ import annotations

import time
import traceback
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NoReturn

from amqp import spec
from celery.exceptions import Reject, SoftTimeLimitExceeded
from celery.utils.log import get_logger

from celery_dlx_retry.app.failure_pause import place_of
from celery_dlx_retry.celery_compat import mark_requeued
from celery_dlx_retry.errors import PublishError, TopologyError, Unpublishable, Unroutable
from celery_dlx_retry.events import GivenBack, Parked, RetryScheduled, emit, with_written_headers
from celery_dlx_retry.topology.wait_route import WaitKind
from celery_dlx_retry.values.log_lines import escaped, log_fields
from celery_dlx_retry.wire.dead_record import DeadRecord
from celery_dlx_retry.wire.header_size import carried
from celery_dlx_retry.wire.headers import PARKED_AT, describe, quotes_arguments, retries_of, with_address
from celery_dlx_retry.wire.message import bare
from celery_dlx_retry.worker.run_state import SETTLED, GiveBack

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from celery_dlx_retry.app.context import AppContext
    from celery_dlx_retry.broker.async_publisher import Problem, Then
    from celery_dlx_retry.events import DeadLettered, Event
    from celery_dlx_retry.policy.reasons import Reason
    from celery_dlx_retry.topology.names import WorkQueue
    from celery_dlx_retry.topology.wait_route import WaitRoute
    from celery_dlx_retry.wire.message import Message
    from celery_dlx_retry.worker.run_state import DeliveryInfo, Retry

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
    #: When this module got the message, by the monotonic clock.
    begun: float = field(default_factory=time.monotonic)

    def passed_ms(self) -> float:
        """Return how long it has taken so far."""
        return (time.monotonic() - self.begun) * 1000


def settle_retry(
    delivery: Delivery, retry: Retry, *, route: WaitRoute | None = None, lane: WaitRoute | None = None
) -> None:
    """Let a message wait in a lane. In the main process the event loop reads the confirm, if it can.

    The caller may have looked up the plain ``lane``, or a ``route`` on which this process waits for the confirm.
    """
    context, queue = delivery.context, delivery.queue
    message = retry.message or replace(delivery.message, headers=retry.headers or {})

    def then(problem: BaseException | None) -> None:
        if problem is None:
            retry_is_out(delivery, retry)
        else:
            delivery.give_back(problem)

    can_be_plain = delivery.is_main and queue.name in context.bound_queues and can_call_back(context)
    if can_be_plain and (lane := lane or context.lanes.plain(queue, retry.delay_ms)):
        # If work queues share the lane, a publish to a missing one closes the channel, and the result of every publish
        # beside it is unknown then. So a lane that is not known to exist is made first.
        is_known = (lane.exchange, lane.routing_key) in context.lanes.seen
        _IntoLane(delivery=delivery, message=message, lane=lane, then=then).start(is_known=is_known)
    else:
        then(_problem_in_lane(delivery, message, retry.delay_ms, route=route))


def retry_is_out(delivery: Delivery, retry: Retry) -> None:
    """Go on when the broker has confirmed a retry."""
    event = RetryScheduled(
        task=delivery.task,
        task_id=delivery.task_id,
        queue=delivery.queue.name,
        retry=retry.number,
        delay_ms=retry.delay_ms,
        error_type=retry.error.partition(":")[0],
        error=retry.error,
        worker=delivery.worker,
        way="lane" if retry.delay_ms in delivery.context.exact_lanes else "grid",
        confirm_ms=delivery.passed_ms(),
    )
    _end(delivery, event)


def settle_dead(
    delivery: Delivery, *, reason: Reason, error: BaseException, fault: BaseException | None = None
) -> None:
    """Make a message a dead letter."""
    record = _death_record(delivery, reason=reason, error=error, fault=fault)
    context, message, queue = delivery.context, delivery.message, delivery.queue
    try:
        for letter in _ever_smaller(message, record):
            try:
                context.publish_dead(letter, queue, record, quickly=delivery.is_main)
                break
            except Unpublishable as problem:
                unfit = problem
                logger.warning(
                    "dead letter without its headers task=%s id=%s: %s",
                    record.task, record.task_id, problem,
                    extra=log_fields("HeadersDropped", task=record.task, task_id=record.task_id, queue=queue.name),
                )  # fmt: skip
        else:
            raise unfit
    except (PublishError, TopologyError, Unpublishable, SoftTimeLimitExceeded) as problem:
        _note_pace(delivery, problem)
        delivery.give_back(problem)
        return
    _note_pace(delivery, None)
    from celery_dlx_retry.deadletters.fingerprint import dead_lettered  # noqa: PLC0415 - senders need no OpenSSL

    event = dead_lettered(record, confirm_ms=delivery.passed_ms())
    _end(delivery, event)


def _ever_smaller(message: Message, record: DeadRecord) -> Iterator[Message]:
    """Yield the letter, and what is left of it if it is unpublishable: without an end it would come back for ever."""
    facts = {
        "kind": "dead-letter",
        "task": record.task,
        "task_id": record.task_id,
        "queue": record.queue,
        "attempts": record.attempts,
        "error": record.error_type,
        "reason": record.reason.value,
    }
    yield replace(message, headers=with_written_headers(message.headers, **facts))
    if (kept := carried(message.headers)) is not message.headers:
        # A body changed a header in place into one that AMQP cannot carry.
        yield replace(message, headers=with_written_headers(kept, **facts))
    yield bare(message)


def settle_parked(delivery: Delivery, *, delay_ms: int, address: Mapping[str, Any]) -> None:
    """Let a message wait that does not run now, as it is and with the time."""
    queue = delivery.queue
    headers = with_address(
        delivery.message.headers,
        exchange=address.get("exchange"),
        routing_key=address.get("routing_key"),
        queue=queue.name,
    )
    message = delivery.message.with_headers({**headers, PARKED_AT: time.time_ns() // 1_000_000})
    problem = _problem_in_lane(delivery, message, delay_ms)
    if problem is not None:
        delivery.give_back(problem)
        return
    event = Parked(
        task=delivery.task, task_id=delivery.task_id, queue=queue.name, delay_ms=delay_ms, worker=delivery.worker
    )
    _end(delivery, event)


def _death_record(
    delivery: Delivery, *, reason: Reason, error: BaseException, fault: BaseException | None = None
) -> DeadRecord:
    """Return the record of a message that dies of this error; ``fault`` is why it is not retried."""
    frames = _traceback(error)
    headers, queue = delivery.message.headers, delivery.queue
    return DeadRecord(
        reason=reason,
        task=str(delivery.task or headers.get("task") or ""),
        task_id=str(delivery.task_id or headers.get("id") or ""),
        queue=queue.name,
        dead_letter_key=queue.dead_letter_key,
        worker=delivery.worker,
        attempts=retries_of(headers) + 1,
        died_at_ms=time.time_ns() // 1_000_000,
        error_type=type(error).__name__,
        error=(describe(error).partition(": ")[2] + (f" ({_text_of_fault(fault)})" if fault else "")).strip(),
        traceback=frames,
    )


def _text_of_fault(fault: BaseException) -> str:
    return f"not retried: {fault}" if isinstance(fault, Unpublishable) else f"its policy failed: {describe(fault)}"


def _traceback(error: BaseException) -> str:
    frames = error.__traceback__
    if frames is None:
        return ""
    lines = traceback.format_exception(type(error), error, frames.tb_next or frames)  # the first is our guard
    if quotes_arguments(error):
        lines[-1] = f"{type(error).__name__}\n"
    return "".join(lines)


def _end(delivery: Delivery, event: Event) -> None:
    try:
        emit(event)
    finally:  # a subscriber may end the process
        delivery.acknowledge(event)


def facts_of(letter: DeadLettered) -> dict[str, Any]:
    """Return what Celery's event task-dead-lettered says."""
    return {name: getattr(letter, name) for name in ("reason", "queue", "attempts", "group")}


def give_back(task: Any, info: DeliveryInfo, problem: BaseException, *, task_id: Any) -> Reject:
    """Return the error that ends this run. Its delivery goes back to its queue, also if a body swallows the error."""
    run = info.run
    if not isinstance(run.outcome, SETTLED):
        run.outcome = GiveBack(place=place_of(problem))
    worker = task.request.hostname
    emit_given_back(task=task.name, task_id=task_id, queue=info.queue.name, worker=worker, problem=problem)
    if not info.forwards:
        task.dlx_context.pause(problem)  # else the main process pauses, and this one has other tasks to run
    return Reject(str(problem), requeue=True)


def raise_problem(problem: BaseException) -> NoReturn:
    """Raise it: the caller of ``retry()`` gives the delivery back, or does what the budget says."""
    raise problem


def nack(message: Any, requeue: bool = True) -> None:  # noqa: ARG001, FBT001, FBT002 - in place of Kombu's reject()
    """Return a delivery by ``basic.nack``: RabbitMQ counts each ``basic.reject`` and drops the message at the 21st."""
    message.channel.send_method(spec.Basic.Nack, "Lbb", (message.delivery_tag, False, True))
    mark_requeued(message)


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
    """Publish into a lane and wait for the confirm; return the problem if it does not come."""
    context, is_out = delivery.context, False
    problem: BaseException | None = None
    try:
        if route is None:
            route = context.wait_route(delivery.queue, delay_ms, wish=WaitKind.RETRY, quickly=delivery.is_main)
        with context.producer_for(route, quickly=delivery.is_main) as producer:
            producer.publish_message(message, exchange=route.exchange, routing_key=route.routing_key)
            is_out = True
        context.published(route)
    except (PublishError, TopologyError, Unpublishable, SoftTimeLimitExceeded) as exc:
        problem = None if is_out else exc
    _note_pace(delivery, problem)
    return problem


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

    def start(self, *, is_known: bool) -> None:
        if is_known:
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
