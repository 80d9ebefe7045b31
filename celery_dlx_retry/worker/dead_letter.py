"""What a dead letter says of the failure: reason, error and traceback."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING

from celery.exceptions import MaxRetriesExceededError

from celery_dlx_retry.app.clock import now_ms
from celery_dlx_retry.errors import Unpublishable
from celery_dlx_retry.wire.dead_record import DeadRecord
from celery_dlx_retry.wire.header_numbers import retries_of
from celery_dlx_retry.wire.headers import describe

if TYPE_CHECKING:
    from celery_dlx_retry.policy.reasons import Reason
    from celery_dlx_retry.worker.settle import Delivery


def death_record(
    delivery: Delivery, *, reason: Reason, error: BaseException, fault: BaseException | None = None
) -> DeadRecord:
    """Return the record of a message that dies of this error; ``fault`` is why it is not retried."""
    headers, queue = delivery.message.headers, delivery.queue
    return DeadRecord(
        reason=reason,
        task=str(delivery.task or headers.get("task") or ""),
        task_id=str(delivery.task_id or headers.get("id") or ""),
        queue=queue.name,
        dead_letter_key=queue.dead_letter_key,
        worker=delivery.worker,
        attempts=retries_of(headers) + 1,
        died_at_ms=now_ms(),
        error_type=type(error).__name__,
        error=(text_of(error).partition(": ")[2] + (f" ({_text_of_fault(fault)})" if fault else "")).strip(),
        traceback=_traceback(error),
    )


def text_of(error: BaseException) -> str:
    """Return the error in one line, without arguments: Celery's error of a task without retries left quotes them."""
    return type(error).__name__ if isinstance(error, MaxRetriesExceededError) else describe(error)


def _text_of_fault(fault: BaseException) -> str:
    return f"not retried: {fault}" if isinstance(fault, Unpublishable) else f"its policy failed: {text_of(fault)}"


def _traceback(error: BaseException) -> str:
    frames = error.__traceback__
    if frames is None:
        return ""
    lines = traceback.format_exception(type(error), error, frames.tb_next or frames)  # the first is our guard
    if isinstance(error, MaxRetriesExceededError):
        lines[-1] = f"{type(error).__name__}\n"
    return "".join(lines)
