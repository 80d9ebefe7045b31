"""Retries on another broker than RabbitMQ, and of eager tasks: the policy decides, and Celery's own retry waits."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from celery.exceptions import Retry

from celery_dlx_retry.core.headers import FIRST_FAILED_AT, first_failed_at_ms, own_headers
from celery_dlx_retry.core.rule_retries import with_rule_retry
from celery_dlx_retry.worker.clock import now_ms
from celery_dlx_retry.worker.delivery import attempt_of, headers_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from celery_dlx_retry.worker.delivery import Attempt


def warn_elsewhere(transport: str) -> None:
    """Say what a worker on this transport cannot do."""
    warnings.warn(
        f"DLXRetryTask needs RabbitMQ; the broker transport is {transport!r}. Policies decide here as well, but "
        "Celery's own retries carry the wait, in the worker's memory. There are no dead letters, budgets and breakers "
        "here: what fails is not kept. Set dlx_require_rabbitmq = True to make this an error.",
        stacklevel=3,
    )


def retry_elsewhere(attempt: Attempt, ask: Callable[..., Any], when: Mapping[str, Any]) -> Any:
    """Ask Celery for a retry, and note that there is one: an error that follows must not be retried, too."""
    try:
        asked = ask(**when)
    except Retry:
        attempt.is_handed_over = True
        raise
    attempt.is_handed_over = True
    return asked


def carried_headers(headers: Mapping[str, Any] | None, request: Any) -> dict[str, Any]:
    """Return the headers of a retry, with what the policy must know at the next failure."""
    kept = {**(headers or {}), **own_headers(headers_of(request))}
    kept[FIRST_FAILED_AT] = first_failed_at_ms(kept, now_ms=now_ms())
    return with_rule_retry(kept, attempt_of(request).rule, retries=request.retries)
