"""A retry that the main process asks for: a hard time limit, or a pool process that is gone.

The pool process has neither written its message nor reported it to Celery.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery import signals
from celery.exceptions import Retry, WorkerLostError
from kombu.utils.encoding import safe_repr

from celery_dlx_retry.app.clock import now_ms
from celery_dlx_retry.app.context import context_of
from celery_dlx_retry.celery_compat import task_context
from celery_dlx_retry.policy.rule_retries import history_facts, with_rule_retry
from celery_dlx_retry.wire.headers import CRASHES, Failure, crashes_of, with_failure
from celery_dlx_retry.wire.message import PreparedRetry
from celery_dlx_retry.worker.dead_letter import text_of
from celery_dlx_retry.worker.run_state import addressed

if TYPE_CHECKING:
    from celery_dlx_retry.policy.rule_retries import RuleRetry
    from celery_dlx_retry.topology.wait_route import WaitRoute
    from celery_dlx_retry.worker.request import DLXRequest
    from celery_dlx_retry.worker.run_state import DeliveryInfo


def write_retry(
    request: DLXRequest, error: BaseException, there: WaitRoute, *, rule: RuleRetry | None
) -> PreparedRetry:
    """Return the received message with the headers of its retry."""
    info: DeliveryInfo = request.delivery_info
    retries = task_context(request).retries + 1
    text = text_of(error)
    failure = Failure(
        attempt=retries,
        at_ms=now_ms(),
        error=text,
        delay_ms=there.length_ms,
        worker=request.hostname,
        **history_facts(rule),
    )
    headers = with_failure(with_rule_retry(info.message.headers, rule, retries=retries - 1), failure)
    headers |= {"retries": retries, "eta": None}
    if isinstance(error, WorkerLostError):
        headers[CRASHES] = crashes_of(headers) + 1
    headers = addressed(headers, info, queue=info.queue)
    message = context_of(request.app).capture().written(info.message.with_headers(headers))
    return PreparedRetry(message=message, length_ms=there.length_ms, error=text)


def announce_retry(request: DLXRequest, error: BaseException, delay_ms: int, exc_info: Any) -> None:
    """Store the state, send the event and call the hooks, as Celery does for a retry."""
    task, context = request.task, task_context(request)
    if request.store_errors:
        task.backend.mark_as_retry(request.id, error, exc_info.traceback, request=context)
    request.send_event("task-retried", exception=safe_repr(error), traceback=exc_info.traceback)
    reason = Retry(exc=error, when=delay_ms / 1000)
    task.request_stack.push(context)
    try:
        task.on_retry(error, request.id, request.args, request.kwargs, exc_info)
        signals.task_retry.send(sender=task, request=context, reason=reason, einfo=exc_info)
    finally:
        task.request_stack.pop()
