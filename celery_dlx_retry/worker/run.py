"""What stands around a task's body: decide and hand over before Celery handles the failure.

Later is too late: in ``on_failure`` the result is stored and the errbacks have fired. Here a failure either is
published and confirmed, and then the original exception goes on to Celery: one FAILURE, one errback; or it is not, and
then the delivery goes back to its queue and nothing is stored.
"""

from __future__ import annotations

import functools
import inspect
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from celery.app.task import Task
from celery.exceptions import Ignore, Reject, Retry
from kombu.utils.encoding import safe_repr

from celery_dlx_retry.app.context import context_of
from celery_dlx_retry.errors import (
    ConfigurationError,
    CrashLoop,
    DeadLetter,
    Unpublishable,
)
from celery_dlx_retry.events import DeadLettered
from celery_dlx_retry.policy.decision import Dead, LetFail, Wait
from celery_dlx_retry.policy.reasons import Reason
from celery_dlx_retry.worker import outcome
from celery_dlx_retry.worker.crash_loop import bounded
from celery_dlx_retry.worker.give_back import give_back
from celery_dlx_retry.worker.outcome import GiveBack
from celery_dlx_retry.worker.pool_interrupts import is_end_of_run
from celery_dlx_retry.worker.run_state import DeliveryInfo, run_state_of
from celery_dlx_retry.worker.settle import Delivery, facts_of, settle_dead, settle_retry

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_dlx_retry.events import Event
    from celery_dlx_retry.policy.decision import Decision
    from celery_dlx_retry.worker.run_state import RunState


#: What a worker calls for a run of a task, and what a user may override.
_HOOKS = ("__call__", "before_start")
_NOT_SUSPECT = nullcontext()


def guard_hooks(cls: type[Task]) -> None:
    """Guard each hook that a class defines or inherits. You can call it again.

    Flask's recipe overrides ``__call__`` without a call of ours, and a ``before_start`` may fail as a body may.
    """
    for name in _HOOKS:
        hook, seen = inspect.getattr_static(cls, name), getattr(cls, name)
        # Celery skips a hook that is None. It reads a property once; that one stays as it is.
        if hook is not inspect.getattr_static(Task, name) and callable(seen) and not _is_guard(hook):
            setattr(cls, name, guarded(hook, seen=seen))


def guarded(hook: Any, *, seen: Any = None) -> Callable[..., Any]:
    """Wrap a hook as a class has it: a function, a static method, a class method or another callable.

    ``seen`` is what the class shows of it: Celery's annotations wrap that.
    """

    # A task's own arguments may have any name, also "task": hence the slash, here and wherever they pass.
    @functools.wraps(hook if seen is None else seen)
    def guard(task: Any, /, *args: Any, **kwargs: Any) -> Any:
        request = task.request
        body = _bound(hook, task)
        if request.called_directly or (run := run_state_of(request)).is_guarded:
            return body(*args, **kwargs)
        if not isinstance(request.delivery_info, DeliveryInfo):
            return _run_elsewhere(task, run, body, args, kwargs)
        run.is_guarded = True
        try:
            with bounded(task) if request.delivery_info.get("redelivered") else _NOT_SUSPECT:
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
    """A body swallowed the Retry that was to end it: its retry goes out all the same, before Celery stores anything."""
    pending = run.outcome
    if not isinstance(pending, outcome.Retry) or pending.is_published:
        return
    run.outcome = None
    settle_retry(_delivery(task, run, outcome.Retry(is_published=True, eta=pending.eta)), pending)


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
    """Our own Reject may have been swallowed on the way; to ignore the task then is to lose it."""
    if isinstance(run.outcome, GiveBack):
        return Reject("a retry could not be published", requeue=True)
    return ignore


def _settle_failure(task: Any, run: RunState, error: BaseException) -> None:
    """Return if Celery is to handle the error as a failure; raise Retry or Reject if not."""
    if isinstance(run.outcome, outcome.Retry):  # retry(throw=False), and an error after it
        return
    decision = run.decision or _decision(task, run, error)
    if isinstance(decision, Wait):
        decision = _retry(task, run, error, decision)
    run.decision = decision
    if isinstance(decision, LetFail):
        run.outcome = outcome.LetFail(is_reported=isinstance(error, Exception))
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
    decision: Decision = task.decide(error)
    return decision


def _settle_reject(task: Any, run: RunState, reject: Reject) -> Reject:
    if reject.requeue or run.is_retried:
        return reject
    _settle_dead(task, run, reject, Reason.REJECTED)
    # The main process is to get this one and no complaint that it could not be pickled.
    return Reject(reject.reason if isinstance(reject.reason, str) else safe_repr(reject.reason), requeue=False)


def _settle_dead(
    task: Any, run: RunState, error: BaseException, reason: Reason, *, fault: BaseException | None = None
) -> None:
    dead = outcome.Dead(is_reported=isinstance(error, Exception))
    settle_dead(_delivery(task, run, dead), reason=reason, error=error, fault=fault)


def _delivery(task: Any, run: RunState, settled: outcome.Outcome) -> Delivery:
    """Return the delivery of this run. It ends with this outcome when the broker has the message."""
    request = task.request
    info: DeliveryInfo = request.delivery_info

    def acknowledge(event: Event) -> None:
        if isinstance(event, DeadLettered) and isinstance(settled, outcome.Dead):
            run.outcome = replace(settled, facts=facts_of(event))
        else:
            run.outcome = settled

    def refuse(problem: BaseException) -> None:
        if isinstance(problem, Unpublishable) and isinstance(settled, outcome.Retry):
            _settle_dead(task, run, problem, Reason.FAILED)
            raise problem
        raise give_back(task, info, problem, task_id=request.id) from problem

    return Delivery(
        context=context_of(task.app),
        message=info.message,
        queue=info.queue,
        task=task.name,
        task_id=request.id,
        worker=request.hostname or "",
        acknowledge=acknowledge,
        give_back=refuse,
    )
