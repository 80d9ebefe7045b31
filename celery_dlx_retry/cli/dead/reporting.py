"""Show an operation on dead letters while it runs: a bar, and notes on stderr."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from celery_dlx_retry.cli.context import note
from celery_dlx_retry.cli.output import counted, echo, monitored
from celery_dlx_retry.operations.monitor import (
    Audited,
    Monitor,
    Notice,
    OnlyKnownQueues,
    QueueForbidden,
    UnknownQueuesSkipped,
    UnreadableLetter,
)
from celery_dlx_retry.values.escaping import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


_MOST_UNREADABLE = 5


class Reporter:
    """Prints notes for what an operation notifies; ``others`` gets all other notices."""

    def __init__(self, others: Callable[[Notice], None] = lambda _: None) -> None:
        self.monitor = Monitor(progress=self._on_progress, notice=self._on_notice)
        self._others = others
        self._progress: Callable[[int, int], None] | None = None
        #: Queue and position of the letters with unreadable headers that a note has named.
        self._unreadable: set[tuple[str, int]] = set()

    @contextmanager
    def bar(self, what: str) -> Iterator[None]:
        """Show progress as a bar with this name, on a terminal."""
        with monitored(what) as monitor:
            self._progress = monitor.progress
            try:
                yield
            finally:
                self._progress = None

    def _on_progress(self, done: int, total: int) -> None:
        if self._progress is not None:
            self._progress(done, total)

    def _on_notice(self, notice: Notice) -> None:
        if isinstance(notice, Audited):
            echo(notice.line, err=True)
        elif isinstance(notice, QueueForbidden):
            note(f"{notice.queue} is left out: the broker user may not read it.")
        elif isinstance(notice, OnlyKnownQueues):
            note(
                "only the dead letters of queues that this app knows are looked at; "
                f"those of a queue that only `celery worker -Q` names need its name: -q NAME. {notice.problem}"
            )
        elif isinstance(notice, UnknownQueuesSkipped):
            flags = " ".join(f"-q {queue}" for queue in notice.work_queues)
            note(f"queues that this app does not know are left alone. To include them, add {flags}.")
        elif isinstance(notice, UnreadableLetter):
            self._note_unreadable(notice)
        else:
            self._others(notice)

    def _note_unreadable(self, notice: UnreadableLetter) -> None:
        """Name the letter and what can be done with it; only the first few of many."""
        letter, key = notice.letter, (notice.letter.queue, notice.position)
        if key in self._unreadable or len(self._unreadable) >= _MOST_UNREADABLE:
            return
        self._unreadable.add(key)
        note(
            printable(
                f"the letter at position {notice.position} of {letter.queue} (task id "
                f"{letter.record.task_id or 'not known'}, body of {len(letter.message.body)} bytes) has headers that "
                f"cannot be read: {letter.unreadable}."
            )
        )
        if len(self._unreadable) == 1:
            note(
                "`dead list --unreadable` shows such letters, `dead export` keeps the bytes of these headers, "
                "`dead replay` sends the task without them, `dead purge` deletes the letter."
            )


def describe_queues(per_queue: Mapping[str, int]) -> str:
    """Return how many dead letters there are in which queues, for a question."""
    where = printable(", ".join(f"{count} in {queue}" for queue, count in per_queue.items()))
    return f"{counted(sum(per_queue.values()), 'dead letter')} ({where})"
