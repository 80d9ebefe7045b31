"""Messages that no task can take: unknown task, invalid, foreign, undecodable. Celery drops them; we keep them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery.utils.log import get_logger

from celery_dlx_retry.app.context import context_of
from celery_dlx_retry.policy.reasons import Reason
from celery_dlx_retry.values.log_lines import escaped, log_fields
from celery_dlx_retry.wire.unreadable import UNREADABLE, unreadable_of
from celery_dlx_retry.worker.run_state import message_of
from celery_dlx_retry.worker.settle import Delivery, emit_given_back, settle_dead

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_dlx_retry.topology.names import WorkQueue

logger = escaped(get_logger(__name__))


class UnreadableHeaders(Exception):
    """Headers or properties that no worker can decode; a fact on the record of a dead letter, never raised."""


class ForeignMessage(Exception):
    """Not a Celery message; a fact on the record of a dead letter, never raised."""


def keep_strays(consumer: Any) -> None:
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
    is_safe: list[bool] = []

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
            acknowledge=lambda _event: is_safe.append(True),
            give_back=try_again,
            is_main=True,
        )
        settle_dead(delivery, reason=reason, error=error)
    except Exception as problem:  # noqa: BLE001 - whatever it is, the worker lives and the delivery stays
        try_again(problem)
    if is_safe:
        _acknowledge(consumer, message, reason, then)


def _acknowledge(consumer: Any, message: Any, reason: Reason, then: Callable[[], None]) -> None:
    message.reject_log_error = message.ack_log_error
    try:
        then()
    except (*consumer.connection_errors, *consumer.channel_errors):
        raise
    except Exception:
        # A result backend, a signal, or Celery that does not expect such an id. The message is safe.
        fields = log_fields("HandlerFailed", reason=str(reason))
        logger.exception("dead-lettered, but Celery's own handler raised reason=%s", reason, extra=fields)
    if not message.acknowledged:
        message.ack_log_error(logger, consumer.connection_errors)
