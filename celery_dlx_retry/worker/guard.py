"""What stands around a task's body: decide and hand over before Celery handles the failure.

Later is too late: in ``on_failure`` the result is stored and the errbacks have fired. Here a failure either is
published and confirmed, and then the original exception goes on to Celery: one FAILURE, one errback; or it is not, and
then the delivery goes back to its queue and nothing is stored.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from celery.exceptions import Ignore, Reject, Retry, SoftTimeLimitExceeded
from celery.utils.log import get_logger

from celery_dlx_retry.core.policy import Dead, LetFail, Wait
from celery_dlx_retry.core.reasons import Reason
from celery_dlx_retry.errors import ConfigurationError, CrashLoop, DeadLetter, PublishError, TopologyError
from celery_dlx_retry.worker.burial import bury
from celery_dlx_retry.worker.crashloop import bounded
from celery_dlx_retry.worker.delivery import DeliveryInfo
from celery_dlx_retry.worker.runtime import runtime_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_dlx_retry.core.policy import Decision

logger = get_logger(__name__)


class Attempt:
    """What became of this run of a task so far."""

    def __init__(self) -> None:
        #: The error that the last retry() was called for.
        self.error: BaseException | None = None
        #: A retry of it waits in a lane; the task lives on there.
        self.is_handed_over = False
        #: The last retry() found that there are no retries left.
        self.is_exhausted = False
        #: The last retry() asked the policy, and it said no.
        self.decision: Decision | None = None
        #: A publish failed; the delivery must go back to its queue even if the body swallowed our Reject.
        self.is_given_back = False
        #: The message is where it belongs: this failure needs nothing more.
        self.is_settled = False


class AlreadyDead(Reject):
    """A Reject whose message is a dead letter already: the worker's main process is to acknowledge it."""


def is_ours(request: Any) -> bool:
    """Whether a request came from RabbitMQ through our Request class: not eager, not a direct call."""
    return isinstance(request.delivery_info, DeliveryInfo)


def attempt_of(request: Any) -> Attempt:
    """The attempt that a request stands for."""
    attempt: Attempt = request.__dict__.setdefault("_dlx_attempt", Attempt())
    return attempt


def guarded(body: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a method of a task that runs its body."""

    @functools.wraps(body)
    def guard(task: Any, *args: Any, **kwargs: Any) -> Any:
        request = task.request
        if not is_ours(request) or request.__dict__.get("_dlx_attempt") is not None:
            return body(task, *args, **kwargs)  # not ours, or inside a guard already
        attempt = attempt_of(request)
        try:
            with bounded(task):
                result = _run(task, attempt, body, args, kwargs)
        except (Ignore, Retry):
            raise
        except Reject as reject:
            raise _settle_reject(task, attempt, reject) from reject.__cause__
        except Exception as exc:
            _settle_failure(task, attempt, exc)
            raise
        finally:
            # retry(max_retries=5) leaves this on the task, and every later autoretry in the process would obey it.
            task.__dict__.pop("override_max_retries", None)
            if not attempt.is_settled:
                request.__dict__.pop("_dlx_attempt", None)
        if attempt.is_given_back:
            raise Reject("a retry could not be published", requeue=True)
        return result

    guard.__dlx__ = True  # type: ignore[attr-defined]
    return guard


def _run(task: Any, attempt: Attempt, body: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    try:
        return body(task, *args, **kwargs)
    except Retry as retry:
        if attempt.is_handed_over:
            raise
        # Raised by hand, without retry(): Celery acknowledges it, and that is the end of the task.
        when = {"countdown": retry.when} if isinstance(retry.when, (int, float)) else {"eta": retry.when}
        return task.retry(exc=retry.exc, **when)


def reporting(on_failure: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a task's ``on_failure`` so that the main process learns what the guard did: einfo is what it gets to see."""

    @functools.wraps(on_failure)
    def report(task: Any, *failure: Any) -> Any:
        attempt, einfo = task.request.__dict__.get("_dlx_attempt"), failure[-1]
        if einfo is not None and attempt is not None:
            einfo.dlx_is_settled = attempt.is_settled
        return on_failure(task, *failure)

    report.__dlx__ = True  # type: ignore[attr-defined]
    return report


def give_back(task: Any, attempt: Attempt, problem: BaseException) -> Reject:
    """What to raise when a message could not be handed over: it stays on its queue, after a pause."""
    attempt.is_given_back = True
    logger.error("not handed over task=%s id=%s: %s", task.name, task.request.id, problem)
    runtime_of(task.app).pause()
    return Reject(str(problem), requeue=True)


def _settle_failure(task: Any, attempt: Attempt, error: Exception) -> None:
    """Return if Celery is to handle the error as a failure; raise Retry or Reject if not."""
    if attempt.is_handed_over:  # retry(throw=False), and an error after it
        attempt.is_settled = True
        return
    decision = attempt.decision or _decision(task, attempt, error)
    if isinstance(decision, Wait):
        task.retry(exc=error, countdown=decision.delay_ms / 1000, max_retries=task.request.retries + 1)
    elif isinstance(decision, LetFail):
        attempt.is_settled = True
    else:
        _bury(task, attempt, error, decision.reason)


def _decision(task: Any, attempt: Attempt, error: Exception) -> Decision:
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


def _settle_reject(task: Any, attempt: Attempt, reject: Reject) -> Reject:
    if reject.requeue or attempt.is_handed_over:
        return reject
    _bury(task, attempt, reject, Reason.REJECTED)
    return AlreadyDead(reject.reason, requeue=False)


def _bury(task: Any, attempt: Attempt, error: BaseException, reason: Reason) -> None:
    request = task.request
    info: DeliveryInfo = request.delivery_info
    runtime = runtime_of(task.app)
    try:
        bury(
            runtime,
            info.message,
            info.queue,
            reason=reason,
            error=error,
            worker=request.hostname or "",
            task=task.name,
            task_id=request.id,
        )
    except (PublishError, TopologyError, SoftTimeLimitExceeded) as problem:
        raise give_back(task, attempt, problem) from error
    runtime.published()
    attempt.is_settled = True
