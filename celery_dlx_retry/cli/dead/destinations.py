"""The work queue that a dead letter goes back to, if this app knows it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kombu.common import Broadcast

from celery_dlx_retry.app.context import context_of
from celery_dlx_retry.cli.context import known_work_queues
from celery_dlx_retry.errors import InvalidSetting, NoDestination

if TYPE_CHECKING:
    from collections.abc import Iterable

    from celery_dlx_retry.deadletters.letter import DeadMessage

_UUID_LENGTH = 36


class Destinations:
    """Call it with a letter for the name of the queue; it raises NoDestination if only the letter names that queue.

    A letter can lie. So a letter goes back to a queue that the app has, or that the operator named, or whose own
    dead-letter queue the letter lies in.
    """

    def __init__(self, app: Any, *, named: Iterable[str], to_queue: str | None) -> None:
        self._names = context_of(app).names
        self.to_queue = to_queue
        queues = app.amqp.queues.values()
        self._of_app = {*known_work_queues(app), *(queue.name for queue in queues)}
        self._named = frozenset(named)
        # The copies of a broadcast queue have random names, each process another: bcast.<UUID>.
        self._copies = {
            it.alias: it.name[:-_UUID_LENGTH]
            for it in queues
            if isinstance(it, Broadcast) and len(it.name.rpartition(".")[2]) == _UUID_LENGTH
        }

    def __call__(self, letter: DeadMessage) -> str:
        """Return where this letter goes."""
        queue = self.to_queue or letter.record.queue
        if self.to_queue or self.is_apps(queue) or (queue and (queue in self._named or self._lies_in_its_own(letter))):
            return queue
        if not queue:
            raise NoDestination(problem="it does not say which work queue it came from")
        raise NoDestination(problem=f"it names the work queue {queue!r:.300}, which this app does not know")

    def is_apps(self, queue: str) -> bool:
        """Return whether the app has this queue."""
        return queue in self._of_app or bool(self._families(queue))

    def dead_letters(self, letter: DeadMessage) -> str:
        """Return the dead-letter queue that this letter will lie in if it dies again."""
        queue = self(letter)
        families = self._families(queue) or [queue]
        return self._names.dead_letters(
            letter.record.dead_letter_key if letter.record.dead_letter_key in families else families[0]
        )

    def _families(self, queue: str) -> list[str]:
        """Return the broadcast queues of which this may be a copy."""
        return [alias for alias, stem in self._copies.items() if queue.startswith(stem)]

    def _lies_in_its_own(self, letter: DeadMessage) -> bool:
        if "{queue}" not in self._names.dead_letter_queue:
            return False  # all share one
        try:
            return self._names.dead_letters(letter.record.queue) == letter.queue
        except (InvalidSetting, UnicodeError):  # no queue can have such a name
            return False
