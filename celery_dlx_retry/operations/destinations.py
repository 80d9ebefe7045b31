"""The work queue that a replayed dead letter goes to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kombu.common import Broadcast

from celery_dlx_retry.app.context import context_of
from celery_dlx_retry.errors import InvalidSetting, NoDestination
from celery_dlx_retry.operations.app_queues import known_work_queues

if TYPE_CHECKING:
    from collections.abc import Iterable

    from celery_dlx_retry.deadletters.letter import DeadMessage

_UUID_LENGTH = 36


class Destinations:
    """Call it with a letter: it returns the work queue, or raises NoDestination if only the letter names that queue.

    Any sender can write any queue into a letter. So a letter goes to a queue of the app, to one that the operator
    named, or to the work queue of the dead-letter queue that holds the letter.
    """

    def __init__(self, app: Any, *, named: Iterable[str], to_queue: str | None) -> None:
        self._names = context_of(app).names
        self.to_queue = to_queue
        queues = app.amqp.queues.values()
        self._of_app = {*known_work_queues(app), *(queue.name for queue in queues)}
        self._named = frozenset(named)
        # Each process has a copy of a broadcast queue with a random name: bcast.<UUID>.
        self._copies = {
            it.alias: it.name[:-_UUID_LENGTH]
            for it in queues
            if isinstance(it, Broadcast) and len(it.name.rpartition(".")[2]) == _UUID_LENGTH
        }

    def __call__(self, letter: DeadMessage) -> str:
        """Return the work queue for this letter."""
        queue = self.to_queue or letter.record.queue
        if (
            self.to_queue
            or self.is_queue_of_app(queue)
            or (queue and (queue in self._named or self._is_in_own_dead_letter_queue(letter)))
        ):
            return queue
        if not queue:
            raise NoDestination(problem="it does not say which work queue it came from")
        raise NoDestination(problem=f"it names the work queue {queue!r:.300}, which this app does not know")

    def is_queue_of_app(self, queue: str) -> bool:
        """Return True if the app has this queue."""
        return queue in self._of_app or bool(self._broadcast_aliases(queue))

    def dead_letters(self, letter: DeadMessage) -> str:
        """Return the dead-letter queue that this letter goes to if the task fails for good again."""
        queue = self(letter)
        aliases = self._broadcast_aliases(queue) or [queue]
        return self._names.dead_letters(
            letter.record.dead_letter_key if letter.record.dead_letter_key in aliases else aliases[0]
        )

    def _broadcast_aliases(self, queue: str) -> list[str]:
        """Return the broadcast queues that this queue may be a copy of."""
        return [alias for alias, stem in self._copies.items() if queue.startswith(stem)]

    def _is_in_own_dead_letter_queue(self, letter: DeadMessage) -> bool:
        if "{queue}" not in self._names.dead_letter_queue:
            return False  # all work queues share one
        try:
            return self._names.dead_letters(letter.record.queue) == letter.queue
        except (InvalidSetting, UnicodeError):  # no queue can have such a name
            return False
