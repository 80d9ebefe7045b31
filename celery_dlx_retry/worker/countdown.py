"""apply_async(countdown=…) and (eta=…): the wait is in the broker, and a worker holds nothing that is not due."""

from __future__ import annotations

import functools
from itertools import islice
from typing import TYPE_CHECKING, Any

from celery.utils.log import get_logger
from kombu.exceptions import OperationalError
from kombu.utils.functional import fxrange

from celery_dlx_retry.app.clock import delay_ms, due_at, eta_header, is_due
from celery_dlx_retry.app.context import context_of
from celery_dlx_retry.app.routes import NoRouter, destination, routed
from celery_dlx_retry.broker.connection import addresses
from celery_dlx_retry.errors import DLXError, PublishError, TopologyError, Unroutable
from celery_dlx_retry.events import CountdownScheduled, emit
from celery_dlx_retry.topology.ladder import skipped_rungs
from celery_dlx_retry.topology.wait_route import WaitKind
from celery_dlx_retry.values.log_lines import escaped, log_fields
from celery_dlx_retry.wire.headers import COPIES, is_returned_retry, without_broker_headers
from celery_dlx_retry.worker.celery_publish import send
from celery_dlx_retry.worker.run_state import addressed, as_sent, message_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from celery import Celery
    from celery.app.task import Task

logger = escaped(get_logger(__name__))


def is_appointment(app: Celery, options: Mapping[str, Any]) -> bool:
    """Whether a call with these options is to wait, and can wait in the broker."""
    if not (options.get("countdown") or options.get("eta")) or app.conf.task_always_eager:
        return False
    context = context_of(app)
    if not context.has_amqp or not context.settings.countdown or app.conf.task_protocol == 1:
        return False
    try:
        return delay_ms(app, countdown=options.get("countdown"), eta=options.get("eta")) > 0
    except (DLXError, ValueError, TypeError, AttributeError, OverflowError):
        return False  # Celery has a word for each


def make(task: Task, apply_async: Callable[..., Any], args: Any, kwargs: Any, options: dict[str, Any]) -> Any:
    """Celery's ``apply_async``, for an appointment: returns when the broker has it."""
    apply_async = functools.partial(apply_async, args, kwargs)
    app = task.app
    options = {**routed(task, args, kwargs, options), "router": NoRouter()}
    queue = destination(app, options)
    # CC and BCC name more queues: Celery publishes to all of them, and the worker that gets a message sends it on.
    if queue is None or _goes_elsewhere(app, options) or not COPIES.isdisjoint(options.get("headers") or ()):
        sentence = "left to Celery task=%s: it leads to no one queue of the app on its broker"
        logger.debug(sentence, task.name, extra=log_fields("LeftToCelery", task=task.name))
        return apply_async(**options)
    context = context_of(app)
    when = {"countdown": options.pop("countdown", None), "eta": options.pop("eta", None)}
    try:
        context.publisher.reach(_pauses(app, options))
        work_queue = context.ensure_work_queue(queue)
        there = context.wait_route(work_queue, delay_ms(app, **when), wish=WaitKind.COUNTDOWN)
        headers = {**(options.get("headers") or {}), "eta": eta_header(app, **when)}
        result = send(task, apply_async, {**options, "headers": headers}, queue=work_queue, there=there)
    except (TopologyError, Unroutable) as problem:
        # Nothing is published, the broker says so. The worker that gets it sends it on, if it may.
        fields = log_fields("LeftToCelery", task=task.name, cause=type(problem).__name__)
        logger.warning("left to Celery task=%s: %s", task.name, problem, extra=fields)
        return apply_async(**options, **when)
    except PublishError as problem:
        raise OperationalError(str(problem)) from problem
    task_id = str(getattr(result, "id", ""))
    emit(CountdownScheduled(task=task.name, task_id=task_id, queue=work_queue.name, delay_ms=there.length_ms))
    return result


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
        # Somebody deleted a wait queue. Without it this message would go round and round.
        fields = log_fields("RungsMissing", rungs=sorted(gone))
        logger.error("rungs missing rungs=%s: declaring the ladder again", sorted(gone), extra=fields)
        context.mend_ladder()
    there = context.wait_route(queue, left_ms, wish=WaitKind.COUNTDOWN, quickly=True)
    value = message_of(message)
    info = as_sent(message.delivery_info, value, queue=queue, names=context.names)
    headers = addressed(without_broker_headers(value.headers), info, queue=queue)
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


def _goes_elsewhere(app: Celery, options: Mapping[str, Any]) -> bool:
    """Whether the caller gave a connection to another broker than the app's."""
    producer = options.get("producer") or options.get("publisher")
    given = options.get("connection") or (producer.connection if producer is not None else None)
    if given is None:
        return False
    ours = app.connection_for_write()
    return not set(addresses(given)) & set(addresses(ours))


def _pauses(app: Celery, options: Mapping[str, Any]) -> Iterator[float]:
    """How often and when Celery would try again to reach the broker."""
    retry = options.get("retry")
    if not (app.conf.task_publish_retry if retry is None else retry):
        return iter(())
    policy = {**app.conf.task_publish_retry_policy, **(options.get("retry_policy") or {})}
    start, longest = policy.get("interval_start", 0), policy.get("interval_max", 1)
    pauses = fxrange(start, start + longest, policy.get("interval_step", 0.2), repeatlast=True)
    most = policy.get("max_retries", 3)
    return islice(pauses, most)
