"""What stands around a task's body: decide and hand over before Celery handles the failure.

Later is too late: in ``on_failure`` the result is stored and the errbacks have fired. Here a failure either is
published and confirmed, and then the original exception goes on to Celery: one FAILURE, one errback; or it is not, and
then the delivery goes back to its queue and nothing is stored.
"""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any

from celery.app.task import Task
from celery.exceptions import Ignore, Reject, Retry, SoftTimeLimitExceeded
from kombu.utils.encoding import safe_repr

from celery_dlx_retry.app.context import context_of
from celery_dlx_retry.errors import (
    ConfigurationError,
    CrashLoop,
    DeadLetter,
    PublishError,
    TopologyError,
    Unpublishable,
)
from celery_dlx_retry.policy.decision import Dead, LetFail, Wait
from celery_dlx_retry.policy.reasons import Reason
from celery_dlx_retry.worker.celery_publish import emit_retry
from celery_dlx_retry.worker.crash_loop import bounded
from celery_dlx_retry.worker.dead_letter import bury
from celery_dlx_retry.worker.give_back import give_back
from celery_dlx_retry.worker.pool_interrupts import is_end_of_run
from celery_dlx_retry.worker.run_state import is_ours, run_state_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_dlx_retry.policy.decision import Decision
    from celery_dlx_retry.worker.run_state import DeliveryInfo, RunState


#: What a worker calls for a run of a task, and what a user may override.
_HOOKS = ("__call__", "before_start")


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
        if request.called_directly or (attempt := run_state_of(request)).is_guarded:
            return body(*args, **kwargs)
        if not is_ours(request):
            return _run_elsewhere(task, attempt, body, args, kwargs)
        attempt.is_guarded = True
        try:
            with bounded(task):
                result = _run(task, attempt, body, args, kwargs)
        except Retry:
            raise
        except Ignore as ignore:
            _publish_now(task, attempt)
            raise _unless_given_back(attempt, ignore) from None
        except Reject as reject:
            _publish_now(task, attempt)
            raise _settle_reject(task, attempt, reject) from reject.__cause__
        except BaseException as exc:
            if is_end_of_run(task, exc, limits=request.timelimit):
                raise
            _publish_now(task, attempt)
            _settle_failure(task, attempt, exc)
            attempt.untold = None if isinstance(exc, Exception) else exc
            raise
        finally:
            attempt.is_guarded = False
        _publish_now(task, attempt)
        if attempt.is_given_back:
            raise Reject("a retry could not be published", requeue=True)
        return result

    guard.__dlx__ = guard  # type: ignore[attr-defined]
    return guard


def _run_elsewhere(task: Any, attempt: RunState, body: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Run the body where no message can be kept: the policy decides, Celery retries, and a dead letter is a failure."""
    attempt.is_guarded = True
    try:
        return body(*args, **kwargs)
    except (Retry, Ignore, Reject):
        raise
    except BaseException as exc:
        if not attempt.is_handed_over and not _is_raised_at_once(task, exc):
            decision = attempt.decision or _decision(task, attempt, exc)
            if isinstance(decision, Wait):
                _retry(task, attempt, exc, decision)
        raise
    finally:
        attempt.is_guarded = False


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


def _publish_now(task: Any, attempt: RunState) -> None:
    """A body swallowed the Retry that was to end it: its retry goes out all the same, before Celery stores anything."""
    parcel, attempt.parcel = attempt.parcel, None
    if parcel is None:
        return
    attempt.is_handed_over = False
    request = task.request
    queue = request.delivery_info.queue
    try:
        context_of(task.app).publish_retry(parcel, queue)
    except Unpublishable as problem:
        _bury(task, attempt, problem, Reason.FAILED)
        raise
    except (PublishError, TopologyError, SoftTimeLimitExceeded) as problem:
        raise give_back(task, request.delivery_info, problem, task_id=request.id) from problem
    attempt.is_handed_over = True
    emit_retry(request, task=task.name, delay_ms=parcel.length_ms, queue=queue.name, error=parcel.error)


def _run(task: Any, attempt: RunState, body: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    try:
        return body(*args, **kwargs)
    except Retry as retry:
        if attempt.is_handed_over:
            raise
        # Raised by hand, without retry(): Celery acknowledges it, and that is the end of the task.
        when = {"countdown": retry.when} if isinstance(retry.when, (int, float)) else {"eta": retry.when}
        return task.retry(exc=retry.exc, **when)


def _unless_given_back(attempt: RunState, ignore: Ignore) -> Any:
    """Our own Reject may have been swallowed on the way; to ignore the task then is to lose it."""
    if attempt.is_given_back:
        return Reject("a retry could not be published", requeue=True)
    return ignore


def _settle_failure(task: Any, attempt: RunState, error: BaseException) -> None:
    """Return if Celery is to handle the error as a failure; raise Retry or Reject if not."""
    if attempt.is_handed_over:  # retry(throw=False), and an error after it
        return
    decision = attempt.decision or _decision(task, attempt, error)
    if isinstance(decision, Wait):
        decision = _retry(task, attempt, error, decision)
    attempt.decision = decision
    if isinstance(decision, LetFail):
        attempt.is_ended = True
    elif isinstance(decision, Dead):
        _bury(task, attempt, error, decision.reason, fault=decision.fault)


def _retry(task: Any, attempt: RunState, error: BaseException, wait: Wait) -> Decision:
    """Raise Retry or Reject, or return what to do instead: the budget refuses it, or its content does not travel."""
    attempt.granted = wait
    try:
        task.retry(exc=error, countdown=wait.delay_ms / 1000, max_retries=task.request.retries + 1)
    except (Retry, Reject):
        raise
    except Unpublishable as problem:
        return Dead(Reason.FAILED, problem)
    except BaseException:
        if not isinstance(attempt.decision, Dead):
            raise
        return attempt.decision
    return wait


def _decision(task: Any, attempt: RunState, error: BaseException) -> Decision:
    if isinstance(error, DeadLetter):
        return Dead(Reason.REQUESTED)
    if isinstance(error, CrashLoop):
        return Dead(Reason.CRASH_LOOP)
    if isinstance(error, ConfigurationError):
        return Dead(Reason.FAILED)  # ours, and no retry will mend it
    if attempt.is_exhausted:
        return Dead(Reason.EXHAUSTED)
    decision: Decision = task.decide(error)
    return decision


def _settle_reject(task: Any, attempt: RunState, reject: Reject) -> Reject:
    if reject.requeue or attempt.is_handed_over:
        return reject
    _bury(task, attempt, reject, Reason.REJECTED)
    # The main process is to get this one and no complaint that it could not be pickled.
    return Reject(reject.reason if isinstance(reject.reason, str) else safe_repr(reject.reason), requeue=False)


def _bury(
    task: Any, attempt: RunState, error: BaseException, reason: Reason, *, fault: BaseException | None = None
) -> None:
    request = task.request
    info: DeliveryInfo = request.delivery_info
    context = context_of(task.app)
    try:
        bury(
            context,
            info.message,
            info.queue,
            reason=reason,
            error=error,
            fault=fault,
            worker=request.hostname or "",
            task=task.name,
            task_id=request.id,
        )
    except (PublishError, TopologyError, Unpublishable, SoftTimeLimitExceeded) as problem:
        raise give_back(task, info, problem, task_id=request.id) from error
    attempt.is_ended = True
