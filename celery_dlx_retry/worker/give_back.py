"""Return a delivery to its work queue when its message could not be handed over: after a pause, and uncounted.

A pool process calls give_back(); the worker's main process then calls nack(). Every return of ours goes this way. A
task's own ``Reject(requeue=True)`` does not: it stays Celery's ``basic.reject``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from amqp import spec
from celery.exceptions import Reject

from celery_dlx_retry.app.context import context_of
from celery_dlx_retry.app.failure_pause import place_of
from celery_dlx_retry.celery_compat import mark_requeued
from celery_dlx_retry.worker.outcome import SETTLED, GiveBack
from celery_dlx_retry.worker.settle import emit_given_back

if TYPE_CHECKING:
    from celery_dlx_retry.worker.run_state import DeliveryInfo


def give_back(task: Any, info: DeliveryInfo, problem: BaseException, *, task_id: Any) -> Reject:
    """Return the error that ends this run. Its delivery goes back to its queue, also if a body swallows the error."""
    run = info.run
    if not isinstance(run.outcome, SETTLED):
        run.outcome = GiveBack(place=place_of(problem))
    worker = task.request.hostname
    emit_given_back(task=task.name, task_id=task_id, queue=info.queue.name, worker=worker, problem=problem)
    if not info.forwards:
        context_of(task.app).pause(problem)  # else the main process pauses, and this one has other tasks to run
    return Reject(str(problem), requeue=True)


def raise_problem(problem: BaseException) -> NoReturn:
    """Raise it: the caller of ``retry()`` gives the delivery back, or does what the budget says."""
    raise problem


def nack(message: Any, requeue: bool = True) -> None:  # noqa: ARG001, FBT001, FBT002 - in place of Kombu's reject()
    """Return a delivery by ``basic.nack``: RabbitMQ counts each ``basic.reject`` and drops the message at the 21st."""
    message.channel.send_method(spec.Basic.Nack, "Lbb", (message.delivery_tag, False, True))
    mark_requeued(message)
