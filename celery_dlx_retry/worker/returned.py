"""Emit the event of a retry that has waited and is with a worker again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery_dlx_retry.app.clock import now_ms
from celery_dlx_retry.events import Returned, emit
from celery_dlx_retry.wire.headers import PARKED_AT, history_of

if TYPE_CHECKING:
    from celery_dlx_retry.app.context import AppContext
    from celery_dlx_retry.worker.run_state import DeliveryInfo


def emit_returned(context: AppContext, info: DeliveryInfo, *, task: str, task_id: str, retries: int) -> None:
    """Emit ``Returned``, if the history has the time when the retry was due.

    A message that was delivered before, or that a breaker parked meanwhile, was due another time.
    """
    headers = info.message.headers
    if info.get("redelivered") or PARKED_AT in headers:
        return
    history = history_of(headers)
    if not history or history[-1].attempt != retries or history[-1].delay_ms is None:
        return
    last, delay_ms = history[-1], history[-1].delay_ms
    emit(
        Returned(
            task=task,
            task_id=task_id,
            queue=info.queue.name,
            retry=retries,
            delay_ms=delay_ms,
            late_ms=max(0, now_ms() - last.at_ms - delay_ms),
            worker=info.worker.partition("/")[0],
            way="lane" if delay_ms in context.exact_lanes else "grid",
        )
    )
