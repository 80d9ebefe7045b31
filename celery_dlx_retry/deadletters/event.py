"""The event of a dead letter, from its record."""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery_dlx_retry.events import DeadLettered

if TYPE_CHECKING:
    from celery_dlx_retry.wire.dead_record import DeadRecord


def dead_lettered(record: DeadRecord, *, confirm_ms: float = 0.0) -> DeadLettered:
    """Return what subscribers are told of a message with this record."""
    from celery_dlx_retry.deadletters.fingerprint import fingerprint  # noqa: PLC0415 - senders need no OpenSSL

    return DeadLettered(
        task=record.task,
        task_id=record.task_id,
        queue=record.queue,
        reason=record.reason,
        attempts=record.attempts,
        group=fingerprint(record).group,
        error_type=record.error_type,
        error=record.error,
        worker=record.worker,
        confirm_ms=confirm_ms,
    )
