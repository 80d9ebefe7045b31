"""What a task decides about an error: its policy is asked with all that the message's headers tell."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from celery.utils.log import get_logger

from celery_dlx_retry.app.clock import now_ms
from celery_dlx_retry.app.context import context_of
from celery_dlx_retry.errors import RetryIn
from celery_dlx_retry.policy.decision import Asked, Dead, Wait, as_policy, decide, decide_without_policy
from celery_dlx_retry.policy.rule_retries import rule_retries_of
from celery_dlx_retry.values.durations import to_ms
from celery_dlx_retry.values.escaping import escaped
from celery_dlx_retry.wire.headers import first_failed_at_ms
from celery_dlx_retry.worker.run_state import headers_of, is_ours

if TYPE_CHECKING:
    from celery_dlx_retry.policy.decision import Decision, Policy
    from celery_dlx_retry.worker.run_state import RunState

logger = escaped(get_logger(__name__))


def decision_on(task: Any, error: BaseException, *, request: Any) -> Decision:
    """Ask the policy of a task about this error, now; without a policy only RetryIn is retried."""
    if task.policy is None:
        return decide_without_policy(error, attempt=request.retries + 1, max_retries=task.max_retries)
    at_ms = now_ms()
    headers = headers_of(request)
    # Elsewhere than on RabbitMQ Celery's first protocol shows no headers to a task.
    is_counted = is_ours(request) or task.app.conf.task_protocol != 1
    decision = decide(
        _granted(task),
        error,
        attempt=request.retries + 1,
        elapsed_ms=at_ms - first_failed_at_ms(headers, now_ms=at_ms),
        chance=random.random(),  # noqa: S311 - jitter is no secret
        now=at_ms / 1000,
        rule_retries=rule_retries_of(headers, retries=request.retries) if is_counted else None,
    )
    if isinstance(decision, Dead) and decision.fault is not None:
        logger.warning(
            "policy failed task=%s id=%s policy=%r", task.name, request.id, task.policy, exc_info=decision.fault
        )
    return decision


def grant_retry(task: Any, attempt: RunState, exc: Any, when: dict[str, Any]) -> Wait | None:
    """Fill in when a retry() runs and how often, where it leaves that to the policy or to RetryIn.

    Returns what the policy grants; None if retry() says all, or if there are no retries left.
    """
    granted, attempt.granted = attempt.granted, None
    if granted is not None:
        return granted  # the guard has asked
    request, error = task.request, attempt.error
    if isinstance(exc, RetryIn):
        when |= {"eta": None, "countdown": None}  # its delay counts, and not the one of autoretry_for
    if when["countdown"] is not None or when["eta"]:
        used = sum(rule_retries_of(headers_of(request), retries=request.retries).values())
        if used and task.policy is not None and when["max_retries"] is None and task.max_retries is not None:
            when["max_retries"] = task.max_retries + used  # the policy does not count what its rules granted
        return None
    if task.policy is None:
        if isinstance(error, RetryIn):
            when["countdown"] = to_ms(error.seconds, what="RetryIn.seconds") / 1000
        return None
    decision = decision_on(task, error or Asked(), request=request)
    if not isinstance(decision, Wait):
        attempt.decision, when["max_retries"] = decision, request.retries
        return None
    when["countdown"] = decision.delay_ms / 1000
    if when["max_retries"] is None:
        when["max_retries"] = request.retries + 1
    return decision


def _granted(task: Any) -> Policy:
    """The policy, asking for no more than this app grants; made once, and not for every failure."""
    policy, longest_ms = task.policy, context_of(task.app).settings.max_delay_ms
    made: tuple[Any, int, Policy] | None = task.__dict__.get("_dlx_granted")
    if made is None or made[0] is not policy or made[1] != longest_ms:
        made = task.__dict__["_dlx_granted"] = (policy, longest_ms, as_policy(policy).within(longest_ms))
    return made[2]
