"""Watch an operation while it runs, and stop it."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


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
    notice: Callable[[Any], None] = _ignore
    #: Set it, from any thread, to stop the operation.
    cancel: threading.Event | None = None

    @property
    def is_cancelled(self) -> bool:
        """Return True if the caller has set ``cancel``."""
        return self.cancel is not None and self.cancel.is_set()

    def wait(self, seconds: float) -> bool:
        """Wait, or until the caller cancels; return False if the operation is cancelled."""
        return not (self.cancel or threading.Event()).wait(seconds)


NO_MONITOR = Monitor()
