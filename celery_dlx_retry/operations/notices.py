"""The values that an operation passes to ``Monitor.notice`` while it runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

    from celery_dlx_retry.broker.waiting import WaitingTask
    from celery_dlx_retry.deadletters.letter import DeadMessage
    from celery_dlx_retry.errors import DLXError


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueForbidden:
    """The broker user may not read this dead-letter queue of another app; the operation continues without it."""

    queue: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OnlyKnownQueues:
    """The HTTP API does not answer, so the operation knows only the queues of this app."""

    problem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownQueuesSkipped:
    """The app does not know these work queues, so the operation leaves their dead letters alone."""

    work_queues: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadableLetter:
    """A selected letter has headers that cannot be decoded."""

    letter: DeadMessage
    #: In its queue, from 1.
    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterPlanned:
    """A replay would move this letter, or keep it because of a problem."""

    letter: DeadMessage
    #: The work queue that the letter would go to.
    queue: str
    problem: DLXError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterReplayed:
    """A replay moved this letter to a work queue."""

    letter: DeadMessage
    queue: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterKept:
    """A replay left this letter in its dead-letter queue."""

    letter: DeadMessage
    queue: str
    problem: DLXError


@dataclass(frozen=True, slots=True, kw_only=True)
class CanariesJudged:
    """The wait for the canaries is over."""

    #: Task id -> outcome.
    outcomes: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingTaskMoved:
    """A task was taken out of its lane, or keeps waiting because of ``problem``."""

    task: WaitingTask
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Audited:
    """The operation has ended, and has written this line to the log ``celery_dlx_retry.audit``."""

    line: str


Notice: TypeAlias = (
    QueueForbidden
    | OnlyKnownQueues
    | UnknownQueuesSkipped
    | UnreadableLetter
    | LetterPlanned
    | LetterReplayed
    | LetterKept
    | CanariesJudged
    | WaitingTaskMoved
    | Audited
)
