"""How a run of a task ends: one value, which travels from the pool process to the main process.

It is the attribute ``dlx_outcome`` of the ``ExceptionInfo`` that a run returns, and the only attribute that we add to
objects of other packages. A run without one is a success, or its message is not settled yet.
"""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - a dataclass field
from dataclasses import dataclass
from typing import Any, TypeAlias

from celery_dlx_retry.wire.message import Message  # noqa: TC001 - a dataclass field


# No slots: pickle asks a class with slots for its fields each time.
@dataclass(frozen=True, kw_only=True)
class Done:
    """The task is done, and only its result could not be stored."""


@dataclass(frozen=True, kw_only=True)
class Retry:
    """The task runs again later. The retry is the received message with these headers, or a message that is given."""

    #: The length of the lane.
    delay_ms: int = 0
    #: 1 is the first retry.
    number: int = 0
    #: The error that is retried: ``Type: text``.
    error: str = ""
    #: When it runs again, as Celery writes it into the headers.
    eta: str | None = None
    headers: Mapping[str, Any] | None = None
    message: Message | None = None
    #: The broker has confirmed it. If not, the main process publishes it.
    is_published: bool = False


@dataclass(frozen=True, kw_only=True)
class Parked:
    """The task did not run: an open breaker let its message wait."""

    #: When it may run, as Celery writes it.
    eta: str


@dataclass(frozen=True, kw_only=True)
class Dead:
    """The message is a dead letter."""

    #: Celery's tracer has stored the failure and called the errbacks. If not, the main process does.
    is_reported: bool = True
    #: What Celery's event of it says.
    facts: Mapping[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class LetFail:
    """The task failed, and its policy keeps no message."""

    is_reported: bool = True


@dataclass(frozen=True, kw_only=True)
class GiveBack:
    """The broker did not take the retry or the dead letter: the delivery goes back to its queue."""

    #: What did not take it, as ``place_of`` names it.
    place: str


@dataclass(frozen=True, kw_only=True)
class Unsettled:
    """The run failed outside of the body, and Celery's tracer has reported nothing: the main process does both."""


Outcome: TypeAlias = Done | Retry | Parked | Dead | LetFail | GiveBack | Unsettled

#: The message is where it belongs, and what is left is to acknowledge the delivery.
SETTLED = (Done, Retry, Parked, Dead, LetFail)
