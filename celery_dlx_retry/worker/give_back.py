"""Return a delivery to its work queue when its message could not be handed over: after a pause, and uncounted.

A pool process calls give_back(); the worker's main process then calls nack(). Every return of ours goes this way. A
task's own ``Reject(requeue=True)`` does not: it stays Celery's ``basic.reject``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from amqp import spec
from celery.exceptions import Reject

from celery_dlx_retry.app.context import context_of
from celery_dlx_retry.celery_compat import mark_requeued
from celery_dlx_retry.events import GivenBack, emit

if TYPE_CHECKING:
    from celery_dlx_retry.worker.run_state import DeliveryInfo


def give_back(task: Any, info: DeliveryInfo, problem: BaseException, *, task_id: Any) -> Reject:
    """Return the error that ends this run. Its delivery goes back to its queue, also if a body swallows the error."""
    info.attempt.problem = problem
    emit_given_back(task.request, task=task.name, queue=info.queue.name, problem=problem, task_id=task_id)
    if not info.forwards:
        context_of(task.app).pause(problem)  # else the main process pauses, and this one has other tasks to run
    return Reject(str(problem), requeue=True)


def emit_given_back(request: Any, *, task: str, queue: str, problem: BaseException, task_id: Any = None) -> None:
    """Emit the event of a delivery that goes back to its queue."""
    emit(
        GivenBack(task=task, task_id=task_id or request.id, queue=queue, problem=problem, worker=request.hostname or "")
    )


def nack(message: Any, requeue: bool = True) -> None:  # noqa: ARG001, FBT001, FBT002 - in place of Kombu's reject()
    """Return a delivery by ``basic.nack``: RabbitMQ counts each ``basic.reject`` and drops the message at the 21st."""
    message.channel.send_method(spec.Basic.Nack, "Lbb", (message.delivery_tag, False, True))
    mark_requeued(message)
