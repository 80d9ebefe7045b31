"""What happens to tasks, as values that you can subscribe to: for metrics, traces, logs and tests.

A subscriber is called in the process where the event happens: a pool process, the main process of a worker, a process
that sends tasks, or one that runs operations on dead letters. Subscribe in a module that all of them import::

    from celery_dlx_retry.events import DeadLettered, subscribe

    def count(event):
        if isinstance(event, DeadLettered):
            dead_letters.labels(event.task, event.reason).inc()

    subscribe(count)
"""

from __future__ import annotations

import logging
from collections.abc import Mapping  # noqa: TC003 - a dataclass field
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryScheduled:
    """A retry waits in a lane: the broker has confirmed it."""

    task: str
    task_id: str
    #: The work queue that the retry comes back to.
    queue: str
    #: 1 is the first retry.
    retry: int
    delay_ms: int
    error_type: str
    #: The error that is retried: ``Type: text``. Empty if ``retry()`` was called without an error.
    error: str
    worker: str
    #: ``lane``: a task announced this delay. ``grid``: the delay was rounded up to the next lane.
    way: Literal["lane", "grid"] = "lane"
    #: How long it took until the broker had confirmed the message.
    confirm_ms: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Returned:
    """A worker received a retry that has waited. This event exists only if you subscribe."""

    task: str
    task_id: str
    queue: str
    #: 1 is the first retry.
    retry: int
    delay_ms: int
    #: How long after its time, the time in the work queue included. Clocks of different machines may differ.
    late_ms: int
    worker: str
    way: Literal["lane", "grid"] = "lane"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLettered:
    """A message is a dead letter: the broker has confirmed it."""

    task: str
    task_id: str
    #: The work queue that the message came from.
    queue: str
    #: One of ``celery_dlx_retry.policy.reasons.Reason``.
    reason: str
    #: How often the task ran, or was about to run.
    attempts: int
    #: The group of ``celery dlx dead groups`` that the letter belongs to.
    group: str
    error_type: str
    error: str
    worker: str
    #: How long it took until the broker had confirmed the message.
    confirm_ms: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """A task succeeded after at least one retry."""

    task: str
    task_id: str
    queue: str
    attempts: int
    #: When the first attempt failed, in ms since 1970; 0 if it is not known.
    first_failed_at_ms: int
    worker: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Parked:
    """An open breaker sent a message to wait in a lane; the task did not run."""

    task: str
    task_id: str
    queue: str
    delay_ms: int
    worker: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenBack:
    """The broker did not take a retry, a dead letter or a parked message. The delivery goes back to its queue."""

    task: str
    task_id: str
    queue: str
    problem: BaseException
    worker: str

    @property
    def cause(self) -> str:
        """The name of the problem's class, such as ``Nacked``, ``Unroutable``, ``Unconfirmed`` or ``Unreachable``."""
        return type(self.problem).__name__


@dataclass(frozen=True, slots=True, kw_only=True)
class CountdownScheduled:
    """A call with a countdown or an eta waits in the broker."""

    task: str
    task_id: str
    queue: str
    delay_ms: int
    #: A worker received the message before it was due, and sent it on.
    is_sent_on: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerChanged:
    """The breaker of a task, in this process, changed its state."""

    task: str
    state: Literal["open", "half open", "closed"]
    interval_ms: int
    #: How many messages may run in each interval; None if all may.
    per_interval: int | None
    pid: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetChanged:
    """The retry budget of a task, in this process, has another tenth of its reserve left than before."""

    #: Empty for ``dlx_budget``, which tasks share.
    task: str
    #: From 0, where no retry is left, to 1.
    remaining: float
    pid: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """A dead letter went back to a work queue."""

    task: str
    task_id: str
    #: The work queue that the letter went to.
    queue: str
    dead_letter_queue: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Purged:
    """Dead letters were deleted."""

    dead_letter_queue: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Edited:
    """The arguments of a dead letter were changed."""

    task: str
    task_id: str
    dead_letter_queue: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """A dead letter came back from a file: the broker has confirmed it."""

    task: str
    task_id: str
    dead_letter_queue: str


Event: TypeAlias = (
    RetryScheduled
    | Returned
    | DeadLettered
    | Recovered
    | Parked
    | GivenBack
    | CountdownScheduled
    | BreakerChanged
    | BudgetChanged
    | Replayed
    | Purged
    | Edited
    | Imported
)


class Subscriber(Protocol):
    """A function, or an object with ``__call__``, that takes every event.

    It must not block: the main process of a worker calls it from its event loop.
    """

    def __call__(self, event: Event, /) -> None:
        """Take one event."""


_subscribers: tuple[Subscriber, ...] = ()
_in_main: tuple[Subscriber, ...] = ()
_without_returns: tuple[Subscriber, ...] = ()
_failed: set[int] = set()


def subscribe(subscriber: Subscriber, *, in_main: bool = False, needs_returns: bool = True) -> None:
    """Call the subscriber for every event in this process, and in processes that it forks later.

    With ``in_main`` the main process of a prefork worker calls it also for the events of its pool processes, and the
    pool processes do not call it. Without ``needs_returns`` a subscriber gets ``Returned`` only if another needs it.
    """
    # One tuple for the process, replaced as a whole, so that emit() needs no lock.
    global _subscribers, _in_main, _without_returns  # noqa: PLW0603
    if subscriber not in _subscribers:
        _in_main = (*_in_main, subscriber) if in_main else _in_main
        _without_returns = _without_returns if needs_returns else (*_without_returns, subscriber)
        _subscribers = (*_subscribers, subscriber)


def unsubscribe(subscriber: Subscriber) -> None:
    """Call the subscriber no more."""
    global _subscribers, _in_main, _without_returns  # noqa: PLW0603
    _subscribers = tuple(it for it in _subscribers if it != subscriber)
    _in_main = tuple(it for it in _in_main if it != subscriber)
    _without_returns = tuple(it for it in _without_returns if it != subscriber)
    _failed.discard(id(subscriber))


def subscribers_in_main() -> tuple[Subscriber, ...]:
    """Return the subscribers that want the events of pool processes in the main process."""
    return _in_main


def needs_returns() -> bool:
    """Return whether a subscriber needs ``Returned``, which costs a look into the history of each retry."""
    return len(_subscribers) > len(_without_returns)


def emit(event: Event) -> None:
    """Call every subscriber. An error of a subscriber is logged, the first time, and harms no task.

    SystemExit and KeyboardInterrupt go on: a signal handler of Celery may have raised them in the subscriber.
    """
    emit_to(_subscribers, event)


def emit_to(subscribers: tuple[Subscriber, ...], event: Event) -> None:
    """Call these subscribers."""
    for subscriber in subscribers:
        try:
            subscriber(event)
        except (SystemExit, KeyboardInterrupt):  # noqa: PERF203 - another subscriber must not miss the event
            raise
        except BaseException:  # also a panic of a library in Rust, and a cancelled coroutine
            if id(subscriber) not in _failed:
                _failed.add(id(subscriber))
                logger.exception(
                    "subscriber %r failed at %s; its next errors are not logged", subscriber, type(event).__name__,
                    extra={"dlx_event": "SubscriberFailed", "dlx_failed_at": type(event).__name__},
                )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """A message that is published next. Whether the broker takes it is not known yet."""

    kind: Literal["retry", "dead-letter", "replay"]
    task: str
    task_id: str
    #: The work queue of the task.
    queue: str
    #: How often the task has run so far, or was about to run; 0 for a replay.
    attempts: int
    #: Those that the message has without the writers.
    headers: Mapping[str, Any]
    #: The class of the error, with or without its text: ``Type: text``.
    error: str = ""
    #: Of a dead letter, one of ``celery_dlx_retry.policy.reasons.Reason``.
    reason: str = ""
    delay_ms: int = 0


class HeaderWriter(Protocol):
    """A function that returns headers for a message, such as the ids of a trace.

    Each name begins with ``dlx-``: such a header survives retries, death and replay. Each value is ASCII text. A
    header has at most 500 characters. The function must not block.
    """

    def __call__(self, message: Outgoing, /) -> Mapping[str, str]:
        """Return the headers to add."""


_MOST_CHARACTERS = 500
_writers: tuple[HeaderWriter, ...] = ()


def write_headers(writer: HeaderWriter) -> None:
    """Ask the writer for headers of every retry, dead letter and replay that this process publishes."""
    global _writers  # noqa: PLW0603
    if writer not in _writers:
        _writers = (*_writers, writer)


def with_written_headers(headers: Mapping[str, Any], **facts: Any) -> Mapping[str, Any]:
    """Return the headers with those of the writers. An error of a writer is logged, the first time."""
    for writer in _writers:
        try:
            headers = {**headers, **_checked(writer(Outgoing(headers=headers, **facts)))}
        except (SystemExit, KeyboardInterrupt):  # noqa: PERF203 - the message must go on
            raise
        except BaseException:
            if id(writer) not in _failed:
                _failed.add(id(writer))
                logger.exception(
                    "header writer %r failed at %s; its next errors are not logged", writer, facts.get("kind"),
                    extra={"dlx_event": "HeaderWriterFailed", "dlx_failed_at": facts.get("kind")},
                )  # fmt: skip
    return headers


def _checked(headers: Mapping[str, str]) -> Mapping[str, str]:
    """Return the headers of a writer. Raise ValueError if they could keep a message from being published."""
    for name, value in headers.items():
        is_text = type(name) is str and type(value) is str and name.isascii() and value.isascii()
        if not is_text or not name.startswith("dlx-") or len(name) + len(value) > _MOST_CHARACTERS:
            raise ValueError(f"{str(name)[:80]!r} is no header with a name from dlx- on and a short ASCII text")
    return headers
