"""Turn a failure into a dead letter: the record of it, handed over with its message."""

from __future__ import annotations

import time
import traceback
from typing import TYPE_CHECKING, Any

from celery.exceptions import MaxRetriesExceededError
from celery.utils.log import get_logger

from celery_dlx_retry.errors import Unpublishable
from celery_dlx_retry.events import DeadLettered, emit
from celery_dlx_retry.values.escaping import escaped
from celery_dlx_retry.wire.dead_record import DeadRecord
from celery_dlx_retry.wire.header_numbers import retries_of
from celery_dlx_retry.wire.header_size import carried
from celery_dlx_retry.wire.headers import describe
from celery_dlx_retry.wire.message import bare

if TYPE_CHECKING:
    from celery_dlx_retry.app.context import AppContext
    from celery_dlx_retry.policy.reasons import Reason
    from celery_dlx_retry.topology.names import WorkQueue
    from celery_dlx_retry.wire.message import Message

logger = escaped(get_logger(__name__))


def bury(  # noqa: PLR0913 - the facts of a death
    context: AppContext,
    message: Message,
    queue: WorkQueue,
    *,
    reason: Reason,
    error: BaseException,
    fault: BaseException | None = None,
    worker: str,
    task: Any = None,
    task_id: Any = None,
    quickly: bool = False,
) -> None:
    """Return when the broker has the dead letter; raise PublishError or TopologyError if it does not."""
    headers = message.headers
    record = DeadRecord(
        reason=reason,
        task=str(task or headers.get("task") or ""),
        task_id=str(task_id or headers.get("id") or ""),
        queue=queue.name,
        dead_letter_key=queue.dead_letter_key,
        worker=worker,
        attempts=retries_of(headers) + 1,
        died_at_ms=time.time_ns() // 1_000_000,
        error_type=type(error).__name__,
        error=(text_of(error).partition(": ")[2] + (f" ({_told(fault)})" if fault else "")).strip(),
        traceback=_traceback(error),
    )
    try:
        # A body can change a header of its message in place into one that AMQP cannot carry.
        context.publish_dead(message.with_headers(carried(headers)), queue, record, quickly=quickly)
    except Unpublishable as problem:
        # The fault of the message: without an end it would come back for ever, and hold up what comes behind it.
        logger.warning("dead letter without its headers task=%s id=%s: %s", record.task, record.task_id, problem)
        context.publish_dead(bare(message), queue, record, quickly=quickly)
    emit(
        DeadLettered(
            task=record.task,
            task_id=record.task_id,
            queue=record.queue,
            reason=record.reason,
            attempts=record.attempts,
            error_type=record.error_type,
            error=record.error,
            worker=record.worker,
        )
    )


def text_of(error: BaseException) -> str:
    """The error in one line; Celery's own of a task without retries left quotes the arguments, which we never show."""
    return type(error).__name__ if isinstance(error, MaxRetriesExceededError) else describe(error)


def _told(fault: BaseException) -> str:
    return f"not retried: {fault}" if isinstance(fault, Unpublishable) else f"its policy failed: {text_of(fault)}"


def _traceback(error: BaseException) -> str:
    frames = error.__traceback__
    if frames is None:
        return ""
    lines = traceback.format_exception(type(error), error, frames.tb_next or frames)  # the first is our guard
    if isinstance(error, MaxRetriesExceededError):
        lines[-1] = f"{type(error).__name__}\n"
    return "".join(lines)
