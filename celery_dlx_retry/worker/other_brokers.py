"""Retries on another broker than RabbitMQ, and of eager tasks: the policy decides, and Celery's own retry waits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery_dlx_retry.app.clock import now_ms
from celery_dlx_retry.policy.rule_retries import with_rule_retry
from celery_dlx_retry.wire.headers import FIRST_FAILED_AT, first_failed_at_ms, own_headers
from celery_dlx_retry.worker.run_state import headers_of, run_state_of

if TYPE_CHECKING:
    from collections.abc import Mapping


def carried_headers(headers: Mapping[str, Any] | None, request: Any) -> dict[str, Any]:
    """Return the headers of a retry, with what the policy must know at the next failure."""
    kept = {**(headers or {}), **own_headers(headers_of(request))}
    kept[FIRST_FAILED_AT] = first_failed_at_ms(kept, now_ms=now_ms())
    return with_rule_retry(kept, run_state_of(request).rule, retries=request.retries)
