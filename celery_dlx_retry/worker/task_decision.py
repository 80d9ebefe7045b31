"""What a task decides about an error: its policy is asked with all that the message's headers tell."""

from __future__ import annotations

import random
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from celery.utils.log import get_logger

from celery_dlx_retry.app.context import context_of
from celery_dlx_retry.errors import RetryIn
from celery_dlx_retry.policy.decision import Asked, Dead, Wait, decide, decide_without_policy
from celery_dlx_retry.policy.policies import as_policy
from celery_dlx_retry.policy.rule_retries import RULE_RETRIES, rule_retries_of
from celery_dlx_retry.values.durations import to_ms
from celery_dlx_retry.values.log_lines import escaped, log_fields
from celery_dlx_retry.wire.headers import FIRST_FAILED_AT, first_failed_at_ms
from celery_dlx_retry.worker.run_state import DeliveryInfo, headers_of

if TYPE_CHECKING:
    from celery_dlx_retry.policy.decision import Decision
    from celery_dlx_retry.policy.policies import Policy
    from celery_dlx_retry.worker.retry import RetryCall
    from celery_dlx_retry.worker.run_state import RunState

logger = escaped(get_logger(__name__))


def decision_on(task: Any, error: BaseException, *, request: Any) -> Decision:
    """Ask the policy of a task about this error, now; without a policy only RetryIn is retried."""
    if task.policy is None:
        return decide_without_policy(error, attempt=request.retries + 1, max_retries=task.max_retries)
    at_ms = time.time_ns() // 1_000_000
    info = request.delivery_info
    is_here = isinstance(info, DeliveryInfo)
    headers = info.message.headers if is_here else request.headers or {}
    # Elsewhere than on RabbitMQ Celery's first protocol shows no headers to a task.
    is_counted = is_here or task.app.conf.task_protocol != 1
    used = rule_retries_of(headers, retries=request.retries) if RULE_RETRIES in headers else {}
    is_first = FIRST_FAILED_AT not in headers
    decision = decide(
        _granted(task),
        error,
        attempt=request.retries + 1,
        elapsed_ms=0 if is_first else at_ms - first_failed_at_ms(headers, now_ms=at_ms),
        chance=random.random(),  # noqa: S311 - jitter is no secret
        now=at_ms / 1000,
        rule_retries=used if is_counted else None,
    )
    if isinstance(decision, Dead) and decision.fault is not None:
        logger.warning(
            "policy failed task=%s id=%s policy=%r", task.name, request.id, task.policy,
            exc_info=decision.fault, extra=log_fields("PolicyFailed", task=task.name, task_id=request.id),
        )  # fmt: skip
    return decision


def grant_retry(task: Any, run: RunState, call: RetryCall) -> tuple[RetryCall, Wait | None]:
    """Fill in when a retry() runs and how often, where it leaves that to the policy or to RetryIn.

    Also return what the policy grants; None if retry() says all, or if there are no retries left.
    """
    request, error = task.request, run.error
    if isinstance(call.exc, RetryIn):
        call = replace(call, eta=None, countdown=None)  # its delay counts, and not the one of autoretry_for
    if call.countdown is not None or call.eta:
        used = sum(rule_retries_of(headers_of(request), retries=request.retries).values())
        if used and task.policy is not None and call.max_retries is None and task.max_retries is not None:
            # The policy does not count what its rules granted.
            call = replace(call, max_retries=task.max_retries + used)
        return call, None
    if task.policy is None:
        if isinstance(error, RetryIn):
            call = replace(call, countdown=to_ms(error.seconds, what="RetryIn.seconds") / 1000)
        return call, None
    decision = decision_on(task, error or Asked(), request=request)
    if not isinstance(decision, Wait):
        run.decision = decision
        return replace(call, max_retries=request.retries), None
    limit = request.retries + 1 if call.max_retries is None else call.max_retries
    return replace(call, countdown=decision.delay_ms / 1000, max_retries=limit), decision


def _granted(task: Any) -> Policy:
    """The policy, asking for no more than this app grants; made once, and not for every failure."""
    policy, longest_ms = task.policy, context_of(task.app).settings.max_delay_ms
    made: tuple[Any, int, Policy] | None = task.__dict__.get("_dlx_granted")
    if made is None or made[0] is not policy or made[1] != longest_ms:
        made = task.__dict__["_dlx_granted"] = (policy, longest_ms, as_policy(policy).within(longest_ms))
    return made[2]
