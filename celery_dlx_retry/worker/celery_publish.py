"""Send a task by Celery's own hand onto a way of ours: its signals, events, results and links stay what they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery.utils.log import get_logger
from kombu.exceptions import OperationalError

from celery_dlx_retry.app.context import context_of
from celery_dlx_retry.app.routes import PLACES, NoRouter
from celery_dlx_retry.celery_compat import event_dispatcher
from celery_dlx_retry.errors import RetryNotPublished
from celery_dlx_retry.values.log_lines import escaped, log_fields

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery import Celery
    from celery.app.task import Task

    from celery_dlx_retry.topology.names import WorkQueue
    from celery_dlx_retry.topology.wait_route import WaitRoute
    from celery_dlx_retry.wire.message import Message

logger = escaped(get_logger(__name__))


def send(
    task: Task, apply_async: Callable[..., Any], options: dict[str, Any], *, queue: WorkQueue, there: WaitRoute
) -> Any:
    """Call Celery's ``apply_async`` with these options, but for where the message goes.

    Returns its result when the broker has the message, and raises PublishError if it does not.
    """
    with context_of(task.app).producer_for(there, queue=queue.name) as producer:
        return apply_async(**_directed(task, options, producer, queue=queue, there=there))


def send_retry(
    task: Task, apply_async: Callable[..., Any], options: dict[str, Any], *, queue: WorkQueue, there: WaitRoute
) -> Any:
    """Do the same for a retry. Raise RetryNotPublished if our producer published nothing.

    Two publishes are no error here: both messages are with the broker, and a delivery that goes back would make more.
    """
    with context_of(task.app).producer_for(there, queue=queue.name) as producer:
        result = apply_async(**_directed(task, options, producer, queue=queue, there=there))
    if not producer.confirmed and not task.app.conf.task_always_eager:
        raise RetryNotPublished(task=task.name)
    return result


def captured(
    task: Task, apply_async: Callable[..., Any], options: dict[str, Any], *, queue: WorkQueue, there: WaitRoute
) -> tuple[Any, Message]:
    """The same without the publish: return the result, and the message for the main process to publish."""
    capture = context_of(task.app).capture(queue.name)
    result = apply_async(**_directed(task, options, capture, queue=queue, there=there))
    if len(capture.messages) != 1:
        raise RetryNotPublished(task=task.name)
    return result, capture.messages[0]


def _directed(
    task: Task, options: dict[str, Any], producer: Any, *, queue: WorkQueue, there: WaitRoute
) -> dict[str, Any]:
    kept = {name: value for name, value in options.items() if name not in PLACES}
    eta = (options.get("headers") or {}).get("eta")
    return {
        "event_dispatcher": _Teller(task.app, queue=queue.name, eta=eta),
        **kept,
        "producer": producer,
        "router": NoRouter(),
        "exchange": there.exchange,
        "routing_key": there.routing_key,
    }


class _Teller:
    """Tells monitors that a task was sent, through a connection of Celery's own.

    Ours is confirmed and mandatory: an event that nobody listens to would be an error there, and end the connection.
    """

    def __init__(self, app: Celery, *, queue: str, eta: str | None) -> None:
        self._app, self._queue, self._eta = app, queue, eta

    def publish(self, kind: str, fields: dict[str, Any], _producer: Any, **options: Any) -> None:
        """See Celery's EventDispatcher."""
        fields = {**fields, "queue": self._queue, "eta": self._eta}
        try:
            with self._app.producer_or_acquire() as producer:
                event_dispatcher(self._app).publish(kind, fields, producer, **options)
        except (OperationalError, OSError) as exc:
            logger.warning(
                "%s event not sent id=%s: %s (the task itself is published)",
                kind, fields["uuid"], exc, extra=log_fields("MonitorEventNotSent", task_id=fields["uuid"]),
            )  # fmt: skip
