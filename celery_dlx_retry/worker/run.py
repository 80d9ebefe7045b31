"""The guard around the body of a task: decide and hand over before Celery handles the failure.

Later is too late: in ``on_failure`` the result is stored and the errbacks have fired. Here a failure either is
published and confirmed, and then the original exception goes on to Celery: one FAILURE, one errback; or it is not, and
then the delivery goes back to its queue and nothing is stored.
"""

from __future__ import annotations

import functools
import inspect
import random
import sys
import time
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from celery.app.task import Task
from celery.exceptions import Ignore, Reject, Retry
from celery.utils.log import get_logger
from kombu.utils.encoding import safe_repr

from celery_dlx_retry.errors import (
    ConfigurationError,
    CrashLoop,
    DeadLetter,
    Unpublishable,
)
from celery_dlx_retry.events import DeadLettered
from celery_dlx_retry.policy.decision import Dead, LetFail, Wait, decide, decide_without_policy
from celery_dlx_retry.policy.policies import as_policy
from celery_dlx_retry.policy.reasons import Reason
from celery_dlx_retry.policy.rule_retries import RULE_RETRIES, rule_retries_of
from celery_dlx_retry.values.log_lines import escaped, log_fields
from celery_dlx_retry.wire.headers import FIRST_FAILED_AT, first_failed_at_ms
from celery_dlx_retry.worker import run_state
from celery_dlx_retry.worker.crash_loop import bounded
from celery_dlx_retry.worker.run_state import DeliveryInfo, GiveBack, run_state_of
from celery_dlx_retry.worker.settle import Delivery, facts_of, give_back, settle_dead, settle_retry

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_dlx_retry.events import Event
    from celery_dlx_retry.policy.decision import Decision
    from celery_dlx_retry.policy.policies import Policy
    from celery_dlx_retry.worker.run_state import RunState

logger = escaped(get_logger(__name__))

#: What a worker calls for a run of a task, and what a user may override.
_HOOKS = ("__call__", "before_start")
_NOT_SUSPECT = nullcontext()


def guard_hooks(cls: type[Task]) -> None:
    """Guard each hook that a class defines or inherits. You can call it again.

    Flask's recipe overrides ``__call__`` without a call of ours, and a ``before_start`` may fail as a body may.
    """
    for name in _HOOKS:
        hook, seen = inspect.getattr_static(cls, name), getattr(cls, name)
        # Celery skips a hook with the value None. It reads a property once, so a property stays as it is.
        if hook is not inspect.getattr_static(Task, name) and callable(seen) and not _is_guard(hook):
            setattr(cls, name, guarded(hook, seen=seen))


def guarded(hook: Any, *, seen: Any = None) -> Callable[..., Any]:
    """Wrap a hook as a class has it: a function, a static method, a class method or another callable.

    ``seen`` is what the class shows of it: Celery's annotations wrap that.
    """

    # A task may have an argument with any name, also "task", so every function that passes arguments has the slash.
    @functools.wraps(hook if seen is None else seen)
    def guard(task: Any, /, *args: Any, **kwargs: Any) -> Any:
        request = task.request
        body = _bound(hook, task)
        info = request.delivery_info
        is_ours = isinstance(info, DeliveryInfo)
        run = None if request.called_directly else info.run if is_ours else run_state_of(request)
        if run is None or run.is_guarded:
            return body(*args, **kwargs)
        if not is_ours:
            return _run_elsewhere(task, run, body, args, kwargs)
        run.is_guarded = True
        try:
            with bounded(task) if info.get("redelivered") else _NOT_SUSPECT:
                result = _run(task, run, body, args, kwargs)
        except Retry:
            raise
        except Ignore as ignore:
            _publish_now(task, run)
            raise _unless_given_back(run, ignore) from None
        except Reject as reject:
            _publish_now(task, run)
            raise _settle_reject(task, run, reject) from reject.__cause__
        except BaseException as exc:
            if is_end_of_run(task, exc, limits=request.timelimit):
                raise
            _publish_now(task, run)
            _settle_failure(task, run, exc)
            raise
        finally:
            run.is_guarded = False
        _publish_now(task, run)
        if isinstance(run.outcome, GiveBack):
            raise Reject("a retry could not be published", requeue=True)
        return result

    guard.__dlx__ = guard  # type: ignore[attr-defined]
    return guard


def _run_elsewhere(task: Any, run: RunState, body: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Run the body where no message can be kept: the policy decides, Celery retries, and a dead letter is a failure."""
    run.is_guarded = True
    try:
        return body(*args, **kwargs)
    except (Retry, Ignore, Reject):
        raise
    except BaseException as exc:
        if not run.is_retried and not _is_raised_at_once(task, exc):
            decision = run.decision or _decision(task, run, exc)
            if isinstance(decision, Wait):
                _retry(task, run, exc, decision)
        raise
    finally:
        run.is_guarded = False


def _is_raised_at_once(task: Any, error: BaseException) -> bool:
    """Whether the error must leave the task as it is. Celery retries nothing with ``task_eager_propagates``."""
    request = task.request
    is_propagated = request.is_eager and task.app.conf.task_eager_propagates
    return is_propagated or is_end_of_run(task, error, limits=request.timelimit)


def _is_guard(hook: Any) -> bool:
    """Return whether we made it. functools.wraps() copies the mark to other functions, but not what it refers to."""
    return getattr(hook, "__dlx__", None) is hook


def _bound(hook: Any, task: Any) -> Callable[..., Any]:
    """Return what ``task.<name>`` is for a hook that the class of the task has, as Python looks it up."""
    get = getattr(type(hook), "__get__", None)
    body: Callable[..., Any] = hook if get is None else get(hook, task, type(task))
    return body


def _publish_now(task: Any, run: RunState) -> None:
    """Publish the retry of a body that swallowed its Retry, before Celery stores anything."""
    pending = run.outcome
    if not isinstance(pending, run_state.Retry) or pending.is_published:
        return
    run.outcome = None
    settle_retry(_delivery(task, run, run_state.Retry(is_published=True, eta=pending.eta)), pending)


def _run(task: Any, run: RunState, body: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    try:
        return body(*args, **kwargs)
    except Retry as retry:
        if run.is_retried:
            raise
        # Raised by hand, without retry(): Celery acknowledges it, and that is the end of the task.
        when = {"countdown": retry.when} if isinstance(retry.when, (int, float)) else {"eta": retry.when}
        return task.retry(exc=retry.exc, **when)


def _unless_given_back(run: RunState, ignore: Ignore) -> Any:
    """Return a Reject if the body swallowed our own: a task that is ignored then would be lost."""
    if isinstance(run.outcome, GiveBack):
        return Reject("a retry could not be published", requeue=True)
    return ignore


def _settle_failure(task: Any, run: RunState, error: BaseException) -> None:
    """Return if Celery must handle the error as a failure; raise Retry or Reject if not."""
    if isinstance(run.outcome, run_state.Retry):  # retry(throw=False), and an error after it
        return
    decision = run.decision or _decision(task, run, error)
    if isinstance(decision, Wait):
        decision = _retry(task, run, error, decision)
    run.decision = decision
    if isinstance(decision, LetFail):
        run.outcome = run_state.LetFail(is_reported=isinstance(error, Exception))
    elif isinstance(decision, Dead):
        _settle_dead(task, run, error, decision.reason, fault=decision.fault)


def _retry(task: Any, run: RunState, error: BaseException, wait: Wait) -> Decision:
    """Raise Retry or Reject, or return what to do instead: the budget refuses it, or its content does not travel."""
    run.granted = wait
    try:
        task.retry(exc=error, countdown=wait.delay_ms / 1000, max_retries=task.request.retries + 1)
    except (Retry, Reject):
        raise
    except Unpublishable as problem:
        return Dead(Reason.FAILED, problem)
    except BaseException:
        if not isinstance(run.decision, Dead):
            raise
        return run.decision
    return wait


def _decision(task: Any, run: RunState, error: BaseException) -> Decision:
    if isinstance(error, DeadLetter):
        return Dead(Reason.REQUESTED)
    if isinstance(error, CrashLoop):
        return Dead(Reason.CRASH_LOOP)
    if isinstance(error, ConfigurationError):
        return Dead(Reason.FAILED)  # ours, and no retry will mend it
    if run.is_exhausted:
        return Dead(Reason.EXHAUSTED)
    return decision_on(task, error, request=task.request)


def _settle_reject(task: Any, run: RunState, reject: Reject) -> Reject:
    if reject.requeue or run.is_retried:
        return reject
    _settle_dead(task, run, reject, Reason.REJECTED)
    # A reason that is no text may not travel to the main process.
    return Reject(reject.reason if isinstance(reject.reason, str) else safe_repr(reject.reason), requeue=False)


def _settle_dead(
    task: Any, run: RunState, error: BaseException, reason: Reason, *, fault: BaseException | None = None
) -> None:
    dead = run_state.Dead(is_reported=isinstance(error, Exception))
    settle_dead(_delivery(task, run, dead), reason=reason, error=error, fault=fault)


def _delivery(task: Any, run: RunState, settled: run_state.Outcome) -> Delivery:
    """Return the delivery of this run. It ends with this outcome when the broker has the message."""
    request = task.request
    info: DeliveryInfo = request.delivery_info

    def acknowledge(event: Event) -> None:
        if isinstance(event, DeadLettered) and isinstance(settled, run_state.Dead):
            run.outcome = replace(settled, facts=facts_of(event))
        else:
            run.outcome = settled

    def refuse(problem: BaseException) -> None:
        if isinstance(problem, Unpublishable) and isinstance(settled, run_state.Retry):
            _settle_dead(task, run, problem, Reason.FAILED)
            raise problem
        raise give_back(task, info, problem, task_id=request.id) from problem

    return Delivery(
        context=task.dlx_context,
        message=info.message,
        queue=info.queue,
        task=task.name,
        task_id=request.id,
        worker=request.hostname or "",
        acknowledge=acknowledge,
        give_back=refuse,
    )


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


def _granted(task: Any) -> Policy:
    """The policy, asking for no more than this app grants; made once, and not for every failure."""
    policy, longest_ms = task.policy, task.dlx_context.settings.max_delay_ms
    made: tuple[Any, int, Policy] | None = task.__dict__.get("_dlx_granted")
    if made is None or made[0] is not policy or made[1] != longest_ms:
        made = task.__dict__["_dlx_granted"] = (policy, longest_ms, as_policy(policy).within(longest_ms))
    return made[2]


def is_end_of_run(task: Any, error: BaseException, *, limits: Any) -> bool:
    """Return whether a worker or its pool ended the run from outside; ``limits`` are the message's: hard, soft.

    Every other error is a failure of the body, also a BaseException.
    """
    if isinstance(error, Exception):
        return False
    if isinstance(error, (SystemExit, KeyboardInterrupt)):
        return True  # the worker's own two are a SystemExit; another one counts as a crash
    pool = getattr(task.dlx_context.consumer, "pool", None)
    if not getattr(pool, "is_green", False):
        return False
    # Who is revoked, or whose connection is lost, is killed by a GreenletExit, and Celery has the last word on it.
    return isinstance(error, _class("greenlet", "GreenletExit")) or _is_hard_time_limit(
        error, (limits or (None,))[0] or task.time_limit or getattr(pool, "timeout", None)
    )


def _is_hard_time_limit(error: BaseException, limit: Any) -> bool:
    """Whether gevent's pool raised it; tasks use the same class for their timeouts."""
    return limit is not None and isinstance(error, _class("gevent", "Timeout")) and error.seconds == limit


def _class(module: str, name: str) -> Any:
    return getattr(sys.modules.get(module), name, ())
