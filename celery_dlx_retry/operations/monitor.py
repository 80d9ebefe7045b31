"""Watch an operation while it runs, stop it, and log who did what: the monitor, and the values that it gets."""

from __future__ import annotations

import getpass
import logging
import socket
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from celery_dlx_retry.values.log_lines import escaped, log_fields

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from celery_dlx_retry.broker.waiting import WaitingTask
    from celery_dlx_retry.deadletters.letter import DeadMessage
    from celery_dlx_retry.errors import DLXError

logger = escaped(logging.getLogger("celery_dlx_retry.audit"))


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


def _ignore(*_: Any) -> None:
    """Do nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Monitor:
    """What an operation calls while it runs, and the event that stops it.

    A cancelled operation ends between two messages. It leaves the remaining messages where they are.
    """

    #: Called with how many messages are done and how many there are.
    progress: Callable[[int, int], None] = _ignore
    #: Called with values that say what the operation has just done.
    notice: Callable[[Notice], None] = _ignore
    #: Set it, from any thread, to stop the operation.
    cancel: threading.Event | None = None

    @property
    def is_cancelled(self) -> bool:
        """Return True if the caller has set ``cancel``."""
        return self.cancel is not None and self.cancel.is_set()

    def wait(self, seconds: float) -> bool:
        """Wait, or until the caller cancels; return False if the operation is cancelled."""
        return not (self.cancel or threading.Event()).wait(seconds)

    def audit(self, action: str, *, by: str, **facts: Any) -> None:
        """Log one line for an operation that changes something, and notify Audited.

        ``by`` is the operator; if it is empty, the user of this process. Facts are names and counts, never arguments
        or credentials.
        """
        words = " ".join(f"{key}={value}" for key, value in facts.items())
        who = by or current_user()
        line = f"audit {action} by={who} {words}".rstrip()
        logger.info("%s", line, extra=log_fields("Audit", action=action, by=who, **facts))
        self.notice(Audited(line=line))


NO_MONITOR = Monitor()


def current_user() -> str:
    """Return ``user@host`` of this process."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # the user of a container may have no name
        user = "?"
    return f"{user}@{socket.gethostname()}"
