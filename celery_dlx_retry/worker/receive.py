"""What a worker does with a message before its task runs.

A message that no task can take becomes a dead letter: its task is unknown, or it is invalid, foreign or undecodable.
Celery drops such messages. A message that is not due yet goes back to the broker and waits there.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from celery.utils.log import get_logger

from celery_dlx_retry.app.clock import delay_ms, due_at, is_due
from celery_dlx_retry.app.context import context_of
from celery_dlx_retry.errors import DLXError, PublishError
from celery_dlx_retry.events import CountdownScheduled, emit
from celery_dlx_retry.policy.reasons import Reason
from celery_dlx_retry.topology.ladder import skipped_rungs
from celery_dlx_retry.topology.wait_route import WaitKind
from celery_dlx_retry.values.log_lines import escaped, log_fields
from celery_dlx_retry.wire.headers import is_returned_retry, with_address, without_broker_headers
from celery_dlx_retry.wire.unreadable import UNREADABLE, unreadable_of
from celery_dlx_retry.worker.run_state import as_sent, message_of
from celery_dlx_retry.worker.settle import Delivery, emit_given_back, facts_of, settle_dead

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery import Celery
    from celery.app.task import Task

    from celery_dlx_retry.events import DeadLettered
    from celery_dlx_retry.topology.names import WorkQueue

logger = escaped(get_logger(__name__))


class UnreadableHeaders(Exception):
    """Headers or properties that no worker can decode; a fact on the record of a dead letter, never raised."""


class ForeignMessage(Exception):
    """Not a Celery message; a fact on the record of a dead letter, never raised."""


def keep_unprocessable(consumer: Any) -> None:
    """Let a worker's consumer make dead letters of what it would drop; call it before the consumer starts."""
    unknown_message, unknown_task = consumer.on_unknown_message, consumer.on_unknown_task
    invalid_task, decode_error = consumer.on_invalid_task, consumer.on_decode_error

    def on_unknown_message(body: Any, message: Any) -> None:
        _keep(
            consumer,
            message,
            Reason.INVALID,
            ForeignMessage("not a Celery message"),
            lambda: unknown_message(body, message),
        )

    def on_unknown_task(body: Any, message: Any, exc: BaseException) -> None:
        _keep(consumer, message, Reason.UNKNOWN_TASK, exc, lambda: unknown_task(body, message, exc))

    def on_invalid_task(body: Any, message: Any, exc: BaseException) -> None:
        _keep(consumer, message, Reason.INVALID, exc, lambda: invalid_task(body, message, exc))

    def on_decode_error(message: Any, exc: BaseException) -> None:
        _keep(consumer, message, Reason.UNDECODABLE, exc, lambda: decode_error(message, exc))

    create = consumer.create_task_handler

    def create_task_handler(*args: Any, **options: Any) -> Callable[[Any], None]:
        on_task_received = create(*args, **options)

        def on_message(message: Any) -> None:
            if UNREADABLE in message.headers:
                # Celery's worker dies of such a message, and so does the next one.
                on_invalid_task(None, message, UnreadableHeaders(unreadable_of(message.headers)))
                return
            try:
                on_task_received(message)
            except (*consumer.connection_errors, *consumer.channel_errors):
                raise
            except Exception as exc:  # noqa: BLE001 - Celery's worker dies of it, and so does the next one
                on_invalid_task(None, message, exc)

        return on_message

    consumer.create_task_handler = create_task_handler
    consumer.on_unknown_message, consumer.on_unknown_task = on_unknown_message, on_unknown_task
    consumer.on_invalid_task, consumer.on_decode_error = on_invalid_task, on_decode_error


def _keep(consumer: Any, message: Any, reason: Reason, error: BaseException, then: Callable[[], None]) -> None:
    """Publish, confirmed; then let Celery do what it does, where "reject" means "acknowledge".

    If it cannot be published now, the delivery stays unacknowledged, and we try again later.
    """
    if message.channel is None or message.channel.connection is None:
        return  # the connection is gone, and the broker delivers it again
    context = context_of(consumer.app)
    queue: WorkQueue | None = None
    letters: list[Any] = []

    def try_again(problem: BaseException | None = None) -> None:
        pause = context.quick_pace.left() or context.quick_pace.failed()
        if problem is not None:
            name = "" if queue is None else queue.name
            emit_given_back(task="", task_id="", queue=name, worker=consumer.hostname, problem=problem)
        consumer.timer.call_after(pause, _keep, (consumer, message, reason, error, then))

    if context.quick_pace.left():
        try_again()
        return
    try:
        queue = context.queue_of(message)
        delivery = Delivery(
            context=context,
            message=message_of(message),
            queue=queue,
            task="",
            task_id="",
            worker=consumer.hostname,
            acknowledge=letters.append,
            give_back=try_again,
            is_main=True,
        )
        settle_dead(delivery, reason=reason, error=error)
    except Exception as problem:  # noqa: BLE001 - whatever it is, the worker lives and the delivery stays
        try_again(problem)
    for letter in letters:
        _acknowledge(consumer, message, letter, then)


def _acknowledge(consumer: Any, message: Any, letter: DeadLettered, then: Callable[[], None]) -> None:
    message.reject_log_error = message.ack_log_error
    try:
        then()
        if letter.reason == Reason.UNKNOWN_TASK and consumer.event_dispatcher:
            # Only here Celery has sent task-failed.
            consumer.event_dispatcher.send("task-dead-lettered", uuid=letter.task_id, **facts_of(letter))
    except (*consumer.connection_errors, *consumer.channel_errors):
        raise
    except Exception:
        # A result backend, a signal, or Celery that does not expect such an id. The message is safe.
        fields = log_fields("HandlerFailed", reason=str(letter.reason))
        logger.exception("dead-lettered, but Celery's own handler raised reason=%s", letter.reason, extra=fields)
    if not message.acknowledged:
        message.ack_log_error(logger, consumer.connection_errors)


def not_before_due(handle: Callable[..., Any], task: Task, consumer: Any) -> Callable[..., Any]:
    """Wrap what a worker does with a message of a task: one that is not due is sent on to wait in the broker.

    It came by ``send_task`` from an app that does not know the task, or it waits longer than the ladder is. If it
    cannot be sent on now, the delivery stays unacknowledged, and we try again later.
    """
    pace = context_of(task.app).quick_pace

    @functools.wraps(handle)
    def handle_or_send_on(message: Any, body: Any, ack: Any, *args: Any, **kwargs: Any) -> Any:
        if message.channel is not None and message.channel.connection is None:
            return None  # the connection is gone, and the broker delivers it again
        if not message.headers.get("eta") or is_returned_retry(message.headers):
            return handle(message, body, ack, *args, **kwargs)
        pause = pace.left()
        try:
            left_ms = _left_ms(task.app, consumer, message)
            if left_ms <= context_of(task.app).ladder.resolution_ms:
                return handle(message, body, ack, *args, **kwargs)
            if not pause:
                _send_on(task, message, left_ms)
                ack(logger, consumer.connection_errors)
                pace.succeeded()
                return None
        except PublishError as problem:
            pause = pace.failed()
            logger.warning(
                "not sent on, trying again in %d s task=%s: %s",
                pause, task.name, problem, extra=_fields("NotSentOn", task, message, problem),
            )  # fmt: skip
        except DLXError as problem:
            logger.warning(
                "held until due task=%s id=%s: %s",
                task.name, message.headers.get("id"), problem, extra=_fields("HeldUntilDue", task, message, problem),
            )  # fmt: skip
            return handle(message, body, ack, *args, **kwargs)
        consumer.timer.call_after(pause, handle_or_send_on, (message, body, ack, *args), kwargs)
        return None

    return handle_or_send_on


def _fields(event: str, task: Task, message: Any, problem: BaseException) -> dict[str, Any]:
    return log_fields(event, task=task.name, task_id=message.headers.get("id"), cause=type(problem).__name__)


def _left_ms(app: Celery, consumer: Any, message: Any) -> int:
    """How long a message has to wait; 0 if it is Celery's to deal with, due or not."""
    headers, context = message.headers, context_of(app)
    if not headers.get("eta") or "task" not in headers or not context.settings.countdown or not context.is_rabbitmq:
        return 0
    try:
        if headers.get("id") in consumer.controller.state.revoked:
            return 0
        if headers.get("expires") and is_due(due_at(app, headers["expires"])):
            return 0
        return delay_ms(app, countdown=None, eta=headers["eta"])
    except (ValueError, TypeError, AttributeError, OverflowError):
        return 0


def _send_on(task: Task, message: Any, left_ms: int) -> None:
    """Return when the broker has it."""
    context = context_of(task.app)
    queue = context.queue_of(message)
    if gone := skipped_rungs(context.names, context.ladder, message.headers):
        # A wait queue was deleted. Without it this message would go round and round.
        fields = log_fields("RungsMissing", rungs=sorted(gone))
        logger.error("rungs missing rungs=%s: declaring the ladder again", sorted(gone), extra=fields)
        context.mend_ladder()
    there = context.wait_route(queue, left_ms, wish=WaitKind.COUNTDOWN, quickly=True)
    value = message_of(message)
    info = as_sent(message.delivery_info, value, queue=queue, names=context.names)
    headers = with_address(
        without_broker_headers(value.headers),
        exchange=info.get("exchange"),
        routing_key=info.get("routing_key"),
        queue=queue.name,
    )
    with context.producer_for(there, quickly=True) as producer:
        producer.publish_message(
            value.with_headers(headers),
            exchange=there.exchange,
            routing_key=there.routing_key,
        )
    task_id = str(message.headers.get("id"))
    emit(
        CountdownScheduled(task=task.name, task_id=task_id, queue=queue.name, delay_ms=there.length_ms, is_sent_on=True)
    )
