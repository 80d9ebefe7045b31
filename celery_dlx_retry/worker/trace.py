"""Around Celery's tracer: whatever it makes of a run, the main process learns whether the message is settled.

Between the hand-over and the acknowledgement Celery stores results and calls users' hooks, and any of them may raise.
The main process would then take a message for lost that waits in a lane, or is a dead letter already.
"""

from __future__ import annotations

import functools
import inspect
import sys
from traceback import walk_tb
from types import FunctionType, TracebackType
from typing import TYPE_CHECKING, Any

from billiard import current_process
from billiard.einfo import ExceptionInfo
from celery import signals
from celery.app import trace as trace_module
from celery.app.trace import TraceInfo, trace_ok_t
from celery.backends.base import DisabledBackend
from celery.exceptions import Ignore, Reject, Retry, WorkerLostError, WorkerShutdown, WorkerTerminate
from celery.states import FAILURE, RETRY
from celery.utils.log import get_logger
from celery.utils.serialization import get_pickleable_etype, get_pickleable_exception
from kombu.exceptions import EncodeError

from celery_dlx_retry.celery_compat import storable, tracer_hostname
from celery_dlx_retry.events import Recovered, emit
from celery_dlx_retry.values.log_lines import escaped, log_fields
from celery_dlx_retry.wire.header_numbers import time_ms_of
from celery_dlx_retry.wire.headers import FIRST_FAILED_AT
from celery_dlx_retry.worker import outcome
from celery_dlx_retry.worker.outcome import SETTLED, Dead, Done, LetFail, Unsettled
from celery_dlx_retry.worker.patch_detection import is_function, is_method
from celery_dlx_retry.worker.pool_interrupts import is_end_of_run
from celery_dlx_retry.worker.process_breaker import held_back, tell
from celery_dlx_retry.worker.process_budget import pay_in
from celery_dlx_retry.worker.run_state import DeliveryInfo, RunState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

logger = escaped(get_logger(__name__))

_PACKAGES = frozenset({"celery", "celery_dlx_retry"})


class QuickTraceInfo(trace_module.TraceInfo):
    """Celery's, for which a retry is made of the user's own frames.

    Celery copies, formats and pickles all of the traceback for every retry, with the positions of each instruction in
    each function on it since Python 3.11. Its own frames and ours, ten of them, say nothing and cost 3 ms. Those that
    led to the error that a policy retries are formatted, too, and Python parses the source of each. Most often nobody
    reads any of it.
    """

    __slots__ = ()

    def handle_retry(self, task: Any, req: Any, **options: Any) -> Any:
        """As Celery does, which takes the traceback from sys.exc_info(): from Python 3.11 on, that of the error."""
        retry = self.retval
        if not _is_read(task, req, **options):
            return self._handle_unread(task, req, **options)
        retry.__traceback__ = _users_frames(retry.__traceback__)
        whole = [(error, error.__traceback__) for error in _behind(retry)]
        cause, retry.exc = retry.exc, storable(retry.exc)
        try:
            for error, tb in whole:
                _set_traceback(error, _from_the_users_on(tb))
            if retry.__traceback__ is not None and sys.version_info >= (3, 11):
                return super().handle_retry(task, req, **options)
            try:
                _raised(retry)
            except Retry:
                # If a policy asked for it, that one short frame is all that Celery gets to copy.
                retry.__traceback__ = retry.__traceback__.tb_next
                return super().handle_retry(task, req, **options)
        finally:
            retry.exc = cause  # goes to the main process, where nobody knows a class that was made here
            for error, tb in whole:
                _set_traceback(error, tb)

    def _handle_unread(self, task: Any, req: Any, **options: Any) -> Any:
        """Let Celery format nothing but the Retry."""
        retry = self.retval
        before = retry.__cause__, retry.__suppress_context__, retry.__traceback__
        retry.__cause__, retry.__traceback__ = None, None
        try:
            _raised_nowhere(retry)
        except Retry:
            retry.__traceback__ = retry.__traceback__.tb_next
            return super().handle_retry(task, req, **options)
        finally:
            retry.__cause__, retry.__suppress_context__, retry.__traceback__ = before


def _is_read(task: Any, req: Any, *, store_errors: bool = True, **_: Any) -> bool:
    """Whether anybody is told of the traceback: a backend, a hook, a signal, or a monitor."""
    return (
        (store_errors and type(task.backend) is not DisabledBackend)
        or not is_method(task.on_retry, "celery.app.task")
        or not is_function(TraceInfo.handle_retry, "celery.app.trace")
        or bool(signals.task_retry.receivers)
        or not isinstance(req.delivery_info, DeliveryInfo)
        or req.delivery_info.is_watched
    )


def _raised(retry: BaseException) -> None:
    raise retry


# Without a file there is no line to look up, and to parse.
_raised_nowhere = FunctionType(_raised.__code__.replace(co_filename="<celery_dlx_retry>"), {})


def _behind(error: BaseException) -> Iterator[BaseException]:
    """The errors that a traceback of this one shows before it."""
    seen = {id(error)}
    while True:
        before = error.__cause__
        if before is None and not error.__suppress_context__:
            before = error.__context__
        if before is None or id(before) in seen:
            return
        seen.add(id(before))
        yield before
        error = before


# An error may be a frozen dataclass, which lets nobody set an attribute of it.
_set_traceback = BaseException.with_traceback


def _from_the_users_on(tb: TracebackType | None) -> TracebackType | None:
    """Without what led to the task; what it called itself, if only Celery, is of interest."""
    inner = tb
    while inner is not None and not _is_users(inner):
        inner = inner.tb_next
    return inner or tb


def _users_frames(tb: TracebackType | None) -> TracebackType | None:
    theirs = []
    while tb is not None:
        if _is_users(tb):
            theirs.append(tb)
        tb = tb.tb_next
    for it in reversed(theirs):
        tb = TracebackType(tb, it.tb_frame, it.tb_lasti, it.tb_lineno)
    return tb


def _is_users(tb: TracebackType) -> bool:
    return str(tb.tb_frame.f_globals.get("__name__")).partition(".")[0] not in _PACKAGES


def traced(tracer: Callable[..., Any], *, task: Any) -> Callable[..., Any]:
    """Wrap what ``build_tracer`` made of a task."""
    tracer = _quick(tracer, task)

    @functools.wraps(tracer)
    def trace(uuid: Any, args: Any, kwargs: Any, request: Any = None) -> Any:
        info = (request or {}).get("delivery_info")
        if not isinstance(info, DeliveryInfo):
            return tracer(uuid, args, kwargs, request)
        run = info.run = RunState(request, args, kwargs)
        try:
            if task.breaker is not None and (held := held_back(task, info, task_id=uuid)) is not None:
                held.retval.dlx_outcome = run.outcome
                return held
            if not request.get("retries"):
                pay_in(task)
            try:
                result = tracer(uuid, args, kwargs, request)
            except BaseException as exc:
                is_done = _ends_unstored(exc, task, run, request)
                found = _failure(exc) if is_done else _result_of(exc, task, run, request)
                if found is None:
                    raise
                result = found
            else:
                is_done = result.info is None or _ends_unstored(result.info.retval, task, run, request)
            if task.breaker is not None:
                tell(task, run, has_returned=is_done)
            return _with_outcome(result, task, run, request)
        finally:
            # Break the cycle of request, delivery info and run: the arguments and the body would stay in memory until
            # the garbage collector runs.
            run.received = run.error = None

    return trace


def _with_outcome(result: Any, task: Any, run: RunState, request: Any) -> Any:
    if isinstance(result.retval, ExceptionInfo):
        result.retval.dlx_outcome = run.outcome
    elif isinstance(run.outcome, outcome.Retry) and not run.outcome.is_published:
        # A wrapper around our guard swallowed the Retry: the main process publishes the retry all the same.
        swallowed = Retry()
        result = trace_ok_t(as_raised(swallowed), TraceInfo(RETRY, swallowed), 0.0, None)
        result.retval.dlx_outcome = run.outcome
    elif result.info is None and run.outcome is None and (retries := request.get("retries")):
        _emit_recovered(task, request, request["delivery_info"], retries=retries)
    return result


def _emit_recovered(task: Any, request: Any, info: DeliveryInfo, *, retries: int) -> None:
    emit(
        Recovered(
            task=task.name,
            task_id=request["id"],
            queue=info.queue.name,
            attempts=retries + 1,
            first_failed_at_ms=time_ms_of(info.message.headers, FIRST_FAILED_AT),
            worker=str(request.get("hostname") or ""),
        )
    )


def _ends_unstored(error: Any, task: Any, run: RunState, request: Any) -> bool:
    """Whether the task is done, and only its result could not be stored; it is acknowledged then, as Celery does.

    What a body raised is settled or given back by now. A result that cannot be encoded is the task's own failure. The
    chord of a task learns in the same call that the task is done: without that a replay is the way to complete it.
    """
    if run.outcome is not None or request.get("chord"):
        return False
    # A body that raises Reject or Ignore says itself what becomes of its message.
    if not isinstance(error, Exception) or isinstance(error, (Ignore, Reject, Retry)):
        return False
    if not _is_from_mark_as_done(error, task.backend):
        return False
    run.outcome = Done()
    # Not the error's text: that of a database may quote the result.
    logger.error(
        "result not stored task=%s id=%s: %s. The task has run and is acknowledged; its result is unknown.",
        task.name, request.get("id"), type(error).__name__,
        extra=log_fields("ResultNotStored", task=task.name, task_id=request.get("id"), cause=type(error).__name__),
    )  # fmt: skip
    return True


def _is_from_mark_as_done(error: BaseException, backend: Any) -> bool:
    """Whether a result backend raised it, or an error before it, while Celery stored SUCCESS.

    Celery calls mark_as_done() after the task's links and the next task of its chain are sent. If the backend is still
    down when Celery then stores FAILURE, this error is the second one.
    """
    # By code, not by name: a body may call a function of the same name.
    methods = (vars(cls).get("mark_as_done") for cls in type(backend).__mro__)
    codes = {getattr(inspect.unwrap(it), "__code__", None) for it in methods if it is not None}
    seen: dict[int, BaseException] = {}
    errors: list[BaseException | None] = [error]
    while errors:
        it = errors.pop()
        if it is not None and id(it) not in seen:
            seen[id(it)] = it
            is_theirs = any(frame.f_code in codes for frame, _ in walk_tb(it.__traceback__))
            if is_theirs and not isinstance(it, EncodeError):
                return True
            errors += [it.__cause__, it.__context__]
    return False


def _result_of(error: BaseException, task: Any, run: RunState, request: Any) -> Any:
    """What to tell the main process of an error that Celery's tracer did not take; None if it is to fly on."""
    if isinstance(error, (WorkerShutdown, WorkerTerminate)):
        return None
    if isinstance(error, (SystemExit, KeyboardInterrupt)):
        # A pool process may exit, and the main process will see it.
        is_lost = current_process().name == "MainProcess"
        return trace_ok_t(as_lost(error), TraceInfo(FAILURE, error), 0.0, None) if is_lost else None
    if is_end_of_run(task, error, limits=request.get("timelimit")):
        return None
    if not isinstance(run.outcome, SETTLED):
        run.outcome = run.outcome or Unsettled()
    elif not isinstance(run.outcome, (Dead, LetFail)) or run.outcome.is_reported:
        fields = log_fields("ReportFailed", task=task.name, task_id=request.get("id"))
        logger.error("after the hand-over id=%s", request.get("id"), exc_info=error, extra=fields)
    return _failure(error)


def _failure(error: BaseException) -> Any:
    return trace_ok_t(_picklable(error), TraceInfo(FAILURE, error), 0.0, None)


def _quick(tracer: Callable[..., Any], task: Any) -> Callable[..., Any]:
    """The same tracer with our TraceInfo; if it is not Celery's own, or made otherwise, it stays as it is."""
    if (hostname := tracer_hostname(tracer)) is None:
        return tracer
    quick: Callable[..., Any] = trace_module.build_tracer(
        task.name, task, task.app.loader, hostname, Info=QuickTraceInfo, app=task.app
    )
    return quick


def _picklable(error: BaseException) -> ExceptionInfo:
    """As Celery sends a failure to the main process."""
    kind, error = get_pickleable_etype(type(error)), get_pickleable_exception(error)
    return ExceptionInfo((kind, error, error.__traceback__ or sys.exc_info()[2]))


def as_lost(error: BaseException) -> ExceptionInfo:
    """A body that called sys.exit() took its process down like any other crash."""
    return as_raised(WorkerLostError(f"Worker exited prematurely: {error!r}."))


def as_raised(error: BaseException) -> ExceptionInfo:
    """An error that was not raised, with a traceback."""
    try:
        raise error
    except type(error):
        return ExceptionInfo()
