"""Spans of attempts, retries, dead letters and replays, linked so that the life of a task is one picture.

Each attempt is a trace. The header ``dlx-trace`` carries the ids that the next attempt links to.
"""

from __future__ import annotations

import sys
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from billiard import current_process
from celery import signals, states
from opentelemetry import context as context_api
from opentelemetry import trace as trace_api
from opentelemetry.context import Context
from opentelemetry.trace import SpanKind, StatusCode

from celery_dlx_retry import events
from celery_dlx_retry.contrib.opentelemetry import attributes as names
from celery_dlx_retry.contrib.opentelemetry.attributes import class_of, operation, text
from celery_dlx_retry.contrib.opentelemetry.links import links_to, sender_of, traceparent
from celery_dlx_retry.wire.headers import replays_of
from celery_dlx_retry.wire.trace_header import TRACE, TaskTrace, trace_of
from celery_dlx_retry.worker.run_state import is_ours

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer

    from celery_dlx_retry.contrib.opentelemetry.attributes import Attributes

# The pool process is gone, and the span of its attempt with it.
_LOST = frozenset(("TimeLimitExceeded", "WorkerLostError"))
_INSTRUMENTATION = "opentelemetry.instrumentation.celery"
_KINDS = {events.RetryScheduled: "retry", events.DeadLettered: "dead-letter", events.Replayed: "replay"}


@dataclass(slots=True, kw_only=True)
class _Attempt:
    """One run of a task in this process."""

    task_id: str
    attributes: Attributes
    #: What the received message names.
    trace: TaskTrace
    #: None as long as opentelemetry-instrumentation-celery has not made it.
    span: Span | None = None
    #: What detaches our own span.
    token: Any = None
    #: The attributes of the retry that Celery publishes next.
    retry: Attributes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Publish:
    """A publish that the broker has not confirmed yet."""

    kind: str
    span: Span
    #: The span of the attempt whose pool process is gone.
    lost: Span | None


_attempt: ContextVar[_Attempt | None] = ContextVar("dlx_attempt", default=None)
# A span that never ends is never exported, so a publish that fails is replaced by the next one.
_publish: ContextVar[_Publish | None] = ContextVar("dlx_publish", default=None)


class Spans:
    """Makes all spans: as receivers of Celery's signals, as a writer of headers, and as a subscriber."""

    def __init__(self, tracer: Tracer) -> None:
        self.tracer = tracer
        # The main process of a prefork worker runs no task.
        self._runs_tasks = False
        self._adds_to_publishes = False

    # --- attempts ---

    def come_last(self) -> None:
        """Begin attempts after opentelemetry-instrumentation-celery has begun its spans."""
        signals.task_prerun.disconnect(self.begin_attempt)
        signals.task_prerun.connect(self.begin_attempt, weak=False)

    def begin_attempt(self, *, task: Any, task_id: str, **_: Any) -> None:
        """Start the span of an attempt, or add to that of opentelemetry-instrumentation-celery."""
        request = task.request
        if not is_ours(request):
            return
        self._runs_tasks = True
        info = request.delivery_info
        headers, queue = info.message.headers, info.queue.name
        attributes = _attributes("process", queue, task=task.name, task_id=task_id)
        attributes[names.ATTEMPT] = request.retries + 1
        if replays := replays_of(headers):
            attributes[names.REPLAYS] = replays
        attempt = _Attempt(task_id=task_id, attributes=attributes, trace=trace_of(headers))
        if _is_instrumented():
            self._adopt_span(attempt)
        else:
            parent = _parent_of(attempt.trace, headers)
            attempt.span = self._start("process", queue, attributes, trace=attempt.trace, parent=parent)
            attempt.token = context_api.attach(trace_api.set_span_in_context(attempt.span, parent))
        _attempt.set(attempt)
        _publish.set(None)

    def end_attempt(self, *, task: Any, task_id: str, state: str = "", retval: Any = None, **_: Any) -> None:
        """End the span of an attempt."""
        attempt = _attempt.get()
        if attempt is None or attempt.task_id != task_id or not is_ours(task.request):
            return
        _attempt.set(None)
        publish = _publish.get()
        _publish.set(None)
        if publish is not None and publish.kind == "retry" and state in {states.RETRY, states.SUCCESS}:
            publish.span.end()  # the main process of the worker publishes it
        if attempt.token is None:
            _adopt_late(attempt)
        elif attempt.span is not None:
            if state == states.FAILURE and not isinstance(retval, tuple(task.throws or ())):
                _fail(attempt.span, type(retval).__name__)
            if not _is_process_ending():  # else the main process has a span for the attempt
                attempt.span.end()
            context_api.detach(attempt.token)

    def _adopt_span(self, attempt: _Attempt) -> None:
        if not self._adds_to_publishes:
            self._adds_to_publishes = True
            signals.before_task_publish.connect(self.add_to_publish, weak=False)
        _adopt_late(attempt)
        if attempt.span is None:
            self.come_last()

    def add_to_publish(self, **_: Any) -> None:
        """Add to the span that opentelemetry-instrumentation-celery has made for the publish of a retry."""
        attempt = _attempt.get()
        if attempt is not None and attempt.retry is not None:
            trace_api.get_current_span().set_attributes(attempt.retry)
            attempt.retry = None

    # --- publishes ---

    def write_header(self, message: events.Outgoing, /) -> dict[str, str]:
        """Start the span of a publish, and return the header that lets the next attempt find it."""
        attempt = _attempt_of(message)
        trace = trace_of(message.headers) if attempt is None else attempt.trace
        before = attempt.span if attempt is not None else self._lost_attempt(message, trace)
        attributes = _publish_attributes(message)
        if before is not None and message.error:
            before.set_attribute(names.EXCEPTION_TYPE, class_of(message.error))
        if attempt is not None and message.kind == "retry" and self._is_published_by_celery(attempt):
            attempt.retry, span = attributes, None
        else:
            if before is not None:
                parent: Context | None = trace_api.set_span_in_context(before)
            else:
                parent = None if message.kind == "replay" else _parent_of(trace, message.headers)
            span = self._start(message.kind, message.queue, attributes, trace=None if attempt else trace, parent=parent)
            self._begin_publish(message, span, lost=None if attempt else before)
        previous = traceparent(before)
        trace = TaskTrace(
            first=trace.first or previous, previous=previous or trace.previous, published=traceparent(span)
        )
        return {TRACE: str(trace)} if trace else {}

    def on_event(self, event: events.Event, /) -> None:
        """End the span of a publish when the broker has confirmed the message."""
        if isinstance(event, events.GivenBack):
            _publish.set(None)
            return
        kind, publish = _KINDS.get(type(event)), _publish.get()
        if kind is None:
            return
        _publish.set(None)
        span = publish.span if publish is not None and publish.kind == kind else None
        if isinstance(event, events.DeadLettered):
            lost = publish.lost if publish is not None else None
            attempt = _attempt_of(event)
            failed = lost or (attempt.span if attempt is not None else span)
            if failed is not None:
                _fail(failed, event.error_type)
            if lost is not None:
                lost.end()
        if span is not None:
            span.end()

    def _start(
        self, name: str, queue: str, attributes: Attributes, *, trace: TaskTrace | None, parent: Context | None
    ) -> Span:
        return self.tracer.start_span(
            f"{name} {text(queue)}",
            context=parent,
            kind=SpanKind.CONSUMER if name == "process" else SpanKind.PRODUCER,
            attributes=attributes,
            links=links_to(trace) if trace else (),
        )

    def _lost_attempt(self, message: events.Outgoing, trace: TaskTrace) -> Span | None:
        """Return a span for an attempt whose pool process is gone. Its length is not known."""
        is_lost = not self._runs_tasks and message.kind != "replay" and class_of(message.error) in _LOST
        if not is_lost or _INSTRUMENTATION in sys.modules:  # its span may have been exported
            return None
        attributes = _attributes("process", message.queue, task=message.task, task_id=message.task_id)
        attributes[names.ATTEMPT] = message.attempts
        parent = _parent_of(trace, message.headers)
        return self._start("process", message.queue, attributes, trace=trace, parent=parent)

    @staticmethod
    def _is_published_by_celery(attempt: _Attempt) -> bool:
        return attempt.token is None and bool(signals.before_task_publish.receivers)

    def _begin_publish(self, message: events.Outgoing, span: Span, *, lost: Span | None) -> None:
        if message.kind == "retry" and _attempt_of(message) is None:
            # The event loop of the main process has many such publishes under way.
            span.end()
            if lost is not None:
                lost.end()
        else:
            _publish.set(_Publish(kind=message.kind, span=span, lost=lost))


def _attributes(name: str, queue: str, *, task: str, task_id: str) -> Attributes:
    return {**operation(name, text(queue)), names.TASK: text(task), names.MESSAGE_ID: text(task_id)}


def _publish_attributes(message: events.Outgoing) -> Attributes:
    found = _attributes(message.kind, message.queue, task=message.task, task_id=message.task_id)
    if message.kind == "retry":
        found |= {names.ATTEMPT: message.attempts + 1, names.DELAY: message.delay_ms}
    elif message.kind == "dead-letter":
        found |= {names.ATTEMPT: message.attempts, names.REASON: message.reason}
    if message.error:
        found[names.EXCEPTION_TYPE] = class_of(message.error)
    return found


def _attempt_of(message: events.Outgoing | events.DeadLettered) -> _Attempt | None:
    """Return the attempt that publishes this message; None if no attempt does."""
    attempt = _attempt.get()
    if attempt is None or attempt.task_id != message.task_id or getattr(message, "kind", "") == "replay":
        return None
    _adopt_late(attempt)
    return attempt


def _parent_of(trace: TaskTrace, headers: Any) -> Context:
    """Return the context of the sender for the first span of a task.

    Later ones may come after days, so they have links and begin a trace.
    """
    return Context() if trace else sender_of(headers)


def _is_process_ending() -> bool:
    """Return whether a pool process is about to exit: at a hard time limit Celery raises SystemExit in the body."""
    return isinstance(sys.exc_info()[1], SystemExit) and current_process().name != "MainProcess"


def _is_instrumented() -> bool:
    """Return whether opentelemetry-instrumentation-celery makes spans in this process."""
    module = sys.modules.get(_INSTRUMENTATION)
    instrumentor = getattr(module, "CeleryInstrumentor", None)
    return instrumentor is not None and bool(instrumentor().is_instrumented_by_opentelemetry)


def _adopt_late(attempt: _Attempt) -> None:
    """Add to the span of opentelemetry-instrumentation-celery, if that exists by now."""
    span = trace_api.get_current_span()
    if attempt.span is None and span.get_span_context().is_valid:
        attempt.span = span
        span.set_attributes(attempt.attributes)
        for link in links_to(attempt.trace):
            span.add_link(link.context, link.attributes)


def _fail(span: Span, error_type: str) -> None:
    span.set_attribute(names.ERROR_TYPE, text(error_type))
    span.set_status(StatusCode.ERROR)
