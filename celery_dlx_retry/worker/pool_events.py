"""Bring the events of pool processes to the main process of a prefork worker, for subscribers that want them there.

Each pool process writes to one pipe, and a thread of the main process reads it. The kernel does not mix two writes that
are short enough. A pool process never waits for the pipe: metrics must not hold up a task.
"""

from __future__ import annotations

import os
import pickle
import select
import struct
import threading
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, BinaryIO

from celery.utils.log import get_logger

from celery_dlx_retry.events import (
    DeadLettered,
    GivenBack,
    RetryScheduled,
    emit_to,
    subscribe,
    subscribers_in_main,
    unsubscribe,
)
from celery_dlx_retry.values.log_lines import escaped, log_fields

if TYPE_CHECKING:
    from celery_dlx_retry.events import Event

logger = escaped(get_logger(__name__))

#: POSIX guarantees 512 bytes at least; Linux has 4096.
_MOST_BYTES = select.PIPE_BUF
_LENGTH = struct.Struct("!H")
_PIPE_BYTES = 1 << 20
_TEXT = 200


def bring_pool_events() -> None:
    """Let processes that this one forks later send their events here. Without such subscribers this does nothing."""
    if not subscribers_in_main():
        return
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    _widen(writing)
    sender = _Sender(writing)
    main = os.getpid()
    threading.Thread(target=_receive, args=(os.fdopen(reading, "rb"),), name="dlx-pool-events", daemon=True).start()

    def in_child() -> None:
        # A process that a pool process forks has done this already.
        if os.getppid() == main:
            for subscriber in subscribers_in_main():
                unsubscribe(subscriber)
            subscribe(sender, needs_returns=False)

    os.register_at_fork(after_in_child=in_child)


class _Sender:
    """Takes the events of a pool process."""

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe
        self._has_warned = False

    def __call__(self, event: Event, /) -> None:
        try:
            content = pickle.dumps(_packed(event))
            if len(content) + _LENGTH.size <= _MOST_BYTES:
                os.write(self._pipe, _LENGTH.pack(len(content)) + content)
                return
            problem = "it is too long"
        except BlockingIOError:
            problem = "the main process is behind"
        except (OSError, pickle.PicklingError, TypeError, AttributeError) as exc:
            problem = repr(exc)
        if not self._has_warned:
            self._has_warned = True
            logger.warning(
                "event %s not sent to the main process: %s; the next ones are not logged",
                type(event).__name__, problem,
                extra=log_fields("PoolEventNotSent", lost=type(event).__name__),
            )  # fmt: skip


def _packed(event: Event) -> tuple[Event, str, str]:
    """Return the event with a short text of its error; not every problem can be pickled, so its name and text go."""
    if isinstance(event, (RetryScheduled, DeadLettered)) and len(event.error) > _TEXT:
        return replace(event, error=event.error[:_TEXT]), "", ""
    if isinstance(event, GivenBack):
        return replace(event, problem=Exception()), event.cause, str(event.problem)[:_TEXT]
    return event, "", ""


def _unpacked(event: Event, cause: str, text: str) -> Event:
    """Return the event as it was. The class of a problem is a new one with the same name."""
    return replace(event, problem=type(cause, (Exception,), {})(text)) if isinstance(event, GivenBack) else event


def _receive(pipe: BinaryIO) -> None:
    """Read the pipe until all writing ends are closed, which is the end of the worker."""
    while head := pipe.read(_LENGTH.size):
        content = pipe.read(_LENGTH.unpack(head)[0])
        try:
            # From our own pool processes, as the results of tasks are.
            event = _unpacked(*pickle.loads(content))  # noqa: S301
        except Exception:
            logger.exception("event of a pool process not read", extra=log_fields("PoolEventNotRead"))
        else:
            with suppress(SystemExit):  # it would end this thread alone, and no later event would be read
                emit_to(subscribers_in_main(), event)


def _widen(pipe: int) -> None:
    """Let the pipe hold thousands of events, where the system can."""
    try:
        import fcntl  # noqa: PLC0415 - the constant is Linux's

        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    except (ImportError, AttributeError, OSError):
        logger.debug("the pipe for events keeps its size", extra=log_fields("PipeNotWidened"))
