"""What ``retry()`` does: ask policy and budget, then schedule the retry or let Celery end the task."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from celery.exceptions import Reject, Retry, SoftTimeLimitExceeded

from celery_dlx_retry.app.clock import delay_ms, eta_after
from celery_dlx_retry.app.context import context_of
from celery_dlx_retry.errors import DLXError, PublishError, RetryNotPublished, TopologyError
from celery_dlx_retry.policy.budget import over_budget
from celery_dlx_retry.policy.decision import Wait
from celery_dlx_retry.topology.wait_route import WaitKind
from celery_dlx_retry.wire.header_size import has_room, room_beside
from celery_dlx_retry.wire.headers import HISTORY, own_headers, with_address
from celery_dlx_retry.worker import outcome
from celery_dlx_retry.worker.celery_publish import captured, send_retry
from celery_dlx_retry.worker.dead_letter import text_of
from celery_dlx_retry.worker.give_back import give_back, raise_problem
from celery_dlx_retry.worker.process_budget import budget_of, refused
from celery_dlx_retry.worker.retry_message import copied_headers, current_headers, is_copy, noted_headers
from celery_dlx_retry.worker.run_state import DeliveryInfo, run_state_of
from celery_dlx_retry.worker.settle import Delivery, retry_is_out, settle_retry
from celery_dlx_retry.worker.task_decision import grant_retry

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_dlx_retry.app.context import AppContext
    from celery_dlx_retry.events import Event
    from celery_dlx_retry.policy.decision import Decision
    from celery_dlx_retry.topology.names import WorkQueue
    from celery_dlx_retry.topology.wait_route import WaitRoute
    from celery_dlx_retry.worker.run_state import RunState

# The broker may refuse a message for it, and closes the channel then. The one of the main process is shared by all
# retries, so the pool process publishes such a message by itself.
_REFUSABLE = frozenset(("user_id",))
_SURELY_TAKEN_BYTES = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryCall:
    """One call of ``retry()``: its arguments, and what Celery's own class would do with them."""

    celerys_retry: Callable[..., Any]
    celerys_apply_async: Callable[..., Any]
    exc: Any = None
    throw: bool = True
    args: Any = None
    kwargs: Any = None
    eta: Any = None
    countdown: float | None = None
    max_retries: int | None = None
    options: dict[str, Any]

    def as_celery_does(self) -> Any:
        """Call Celery's ``retry()``, which publishes by ``apply_async()`` and raises."""
        return self.celerys_retry(
            self.args,
            self.kwargs,
            self.exc,
            self.throw,
            eta=self.eta,
            countdown=self.countdown,
            max_retries=self.max_retries,
            **self.options,
        )

    def after(self, wait: Wait) -> RetryCall:
        """Return the same call with another delay."""
        return replace(self, countdown=wait.delay_ms / 1000, eta=None)


def retry(task: Any, call: RetryCall) -> Any:
    """Do what ``retry()`` does in a run of a task."""
    request = task.request
    info = request.delivery_info
    run = info.run if isinstance(info, DeliveryInfo) else run_state_of(request)
    run.error = call.exc if isinstance(call.exc, BaseException) else sys.exc_info()[1]
    run.is_over = call.throw
    granted, run.granted = run.granted, None
    is_asked = granted is not None  # the guard has asked the policy
    if not is_asked:
        call, granted = grant_retry(task, run, call)
    run.rule = granted.rule if granted else None
    limit = task.max_retries if call.max_retries is None else call.max_retries
    run.is_exhausted = limit is not None and request.retries >= limit
    if not isinstance(request.delivery_info, DeliveryInfo):
        return _retry_elsewhere(run, call)
    if run.is_exhausted:
        return call.as_celery_does()
    context = context_of(task.app)
    try:
        if granted is not None and is_asked and call.countdown == granted.delay_ms / 1000 and not call.eta:
            return _within_budget(task, run, call, granted, context)
        if call.countdown is None and not call.eta:
            call = replace(call, countdown=task.default_delay(context.settings.max_delay_ms))
        length_ms = delay_ms(task.app, countdown=call.countdown, eta=call.eta)
        wait = Wait(length_ms, granted.latest_ms if granted else None)
        return _within_budget(task, run, call, wait, context)
    except (PublishError, TopologyError, Reject) as raised:
        if raised is call.exc:
            raise  # there is no retry, and so Celery raises the error of the task
        # Celery raises Reject if the retry could not be published, and would end the task.
        problem = raised.reason if isinstance(raised, Reject) else raised
        if isinstance(problem, (PublishError, TopologyError, SoftTimeLimitExceeded)):
            raise give_back(task, request.delivery_info, problem, task_id=request.id) from raised
        if isinstance(problem, BaseException):
            raise problem from raised
        raise


def _retry_elsewhere(run: RunState, call: RetryCall) -> Any:
    """Ask Celery for a retry, and note that there is one: an error that follows must not be retried, too."""
    try:
        asked = call.as_celery_does()
    except Retry:
        run.outcome = outcome.Retry(is_published=True)
        raise
    run.outcome = outcome.Retry(is_published=True)
    return asked


def _within_budget(task: Any, run: RunState, call: RetryCall, wait: Wait, context: AppContext) -> Any:
    """Schedule the retry if the budget pays for it. If not, do what the budget says."""
    budget = None if task.budget is None and context.settings.budget is None else budget_of(task)
    if budget is None or budget.draw():
        try:
            return _decided(task, run, call, wait, context)
        except (Reject, DLXError):
            if budget is not None:
                budget.give_back()  # it could not be published, and will be asked for again
            raise
    decision = over_budget(budget.budget, wait)
    return _decided(task, run, call.after(decision) if isinstance(decision, Wait) else call, decision, context)


def _decided(task: Any, run: RunState, call: RetryCall, decision: Decision, context: AppContext) -> Any:
    if not isinstance(decision, Wait):
        run.decision = decision
        return replace(call, max_retries=task.request.retries).as_celery_does()  # as if no retries were left
    try:
        return _schedule(task, run, call, decision, context)
    except Reject as reject:
        other = refused(task, decision, reject.reason)
        if other is None:
            raise
    except PublishError as problem:
        other = refused(task, decision, problem)
        if other is None:
            raise
    return _decided(task, run, call.after(other) if isinstance(other, Wait) else call, other, context)


def _schedule(task: Any, run: RunState, call: RetryCall, wait: Wait, context: AppContext) -> Any:
    request = task.request
    if is_copy(task, call, run, context):
        if task.typing and (check := getattr(task, "__header__", None)) is not None:
            check(*request.args, **request.kwargs)  # Celery refuses to send arguments that do not fit
        ignored = request.delivery_info.message.headers.get("ignore_result")
        if not (ignored if isinstance(ignored, bool) else task.ignore_result):
            task.app.backend.on_task_call(context.capture(), request.id)
        try:
            is_scheduled = _schedule_copy(task, run, wait, context)
        except SoftTimeLimitExceeded as late:
            raise Reject(late, requeue=False) from late  # as Celery does in the middle of a publish
        if is_scheduled:
            if call.max_retries is not None:
                task.override_max_retries = call.max_retries
            asked = Retry(exc=call.exc, when=call.eta or call.countdown)
            if call.throw:
                raise asked
            return asked
    return _celerys_retry(task, run, call)


def _schedule_copy(task: Any, run: RunState, wait: Wait, context: AppContext) -> bool:
    """Let the received message wait, with new headers; return False if they leave no room."""
    request = task.request
    info: DeliveryInfo = request.delivery_info
    route, is_forwarded = _route(run, info, info.queue, wait.delay_ms, context)
    it = _retry_of(task, run, route)
    headers = copied_headers(current_headers(request), request, it, run.rule)
    # If there is a history, the headers are not longer than HEADERS_BYTES.
    if headers[HISTORY] == "[]" and not has_room(headers, room=room_beside(info.message.properties)):
        return False
    it = replace(it, headers=headers)
    if is_forwarded:
        run.outcome = it
    else:
        settle_retry(_delivery(task, run, info.queue, context, eta=it.eta), it, route=route)
    return True


def _celerys_retry(task: Any, run: RunState, call: RetryCall) -> Any:
    """Let Celery write the retry. Its Retry says that the message waits somewhere, so make sure that it does.

    An eager one is run again by ``apply()``.
    """
    try:
        result = call.as_celery_does()
    except Retry as retry:
        if run.is_retried or task.request.is_eager:
            raise
        raise RetryNotPublished(task=task.name) from retry
    if run.is_retried or task.request.is_eager:
        return result
    raise RetryNotPublished(task=task.name)


def retry_async(  # noqa: PLR0913, PLR0917 - what signature_from_request left in the options
    task: Any, apply_async: Any, options: dict[str, Any], queue: WorkQueue, wait_ms: int, request: Any
) -> Any:
    """Publish a retry that Celery writes by ``apply_async()``, or leave it to the main process."""
    run, context = run_state_of(request), context_of(task.app)
    info: DeliveryInfo = request.delivery_info
    is_refusable = not _REFUSABLE.isdisjoint((*options, *(options.get("headers") or ())))
    route, is_forwarded = _route(run, info, queue, wait_ms, context, is_refusable=is_refusable)
    it = _retry_of(task, run, route)
    # retry(headers=...) replaces the headers that the message came with; ours stay.
    headers = {**(options.get("headers") or {}), **own_headers(info.message.headers)}
    headers = noted_headers(headers, request, it, run.rule, queue=queue.name)
    if queue.name != info.queue.name:
        headers = with_address(headers, exchange="", routing_key=queue.name, queue=queue.name)
    options |= {"headers": headers, "add_to_parent": False}
    delivery = _delivery(task, run, queue, context, eta=it.eta)
    if not is_forwarded:
        result = send_retry(task, apply_async, options, queue=queue, there=route)
        context.published(route)
        retry_is_out(delivery, it)
        return result
    result, message = captured(task, apply_async, options, queue=queue, there=route)
    it = replace(it, message=message)
    if len(message.body) <= max(_SURELY_TAKEN_BYTES, len(info.message.body)):
        run.outcome = it
    else:
        # The broker has not taken so long a body of this task yet, and may refuse it.
        settle_retry(delivery, it, route=route)
    return result


def _retry_of(task: Any, run: RunState, route: WaitRoute) -> outcome.Retry:
    error = text_of(run.error) if run.error is not None else ""
    eta = eta_after(task.app, route.length_ms / 1000)
    return outcome.Retry(delay_ms=route.length_ms, number=task.request.retries + 1, error=error, eta=eta)


def _route(  # noqa: PLR0913 - all that it depends on
    run: RunState,
    info: DeliveryInfo,
    queue: WorkQueue,
    wait_ms: int,
    context: AppContext,
    *,
    is_refusable: bool = False,
) -> tuple[WaitRoute, bool]:
    """Return the way of a retry, and whether the main process publishes it, when the run is over."""
    if info.is_bound:
        context.mark_bound(info.queue)
    if info.forwards and run.is_over and queue.name == info.queue.name and not is_refusable:
        lane = context.lanes.plain(queue, wait_ms)
        # If the lane may be missing, this process publishes by itself, which makes the lane.
        if lane is not None and context.lanes.expects(lane):
            return lane, True
    return context.wait_route(queue, wait_ms, wish=WaitKind.RETRY), False


def _delivery(task: Any, run: RunState, queue: WorkQueue, context: AppContext, *, eta: str | None) -> Delivery:
    """Return the delivery of a run whose retry is published now."""
    request = task.request

    def acknowledge(_event: Event) -> None:
        run.outcome = outcome.Retry(is_published=True, eta=eta)

    return Delivery(
        context=context,
        message=request.delivery_info.message,
        queue=queue,
        task=task.name,
        task_id=request.id,
        worker=request.hostname or "",
        acknowledge=acknowledge,
        give_back=raise_problem,
    )
