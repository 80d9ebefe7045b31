"""The queues of an app: those that its workers consume, those that it knows, and where a replayed letter goes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from celery.exceptions import ImproperlyConfigured
from kombu.common import Broadcast

from celery_dlx_retry.app.context import context_of
from celery_dlx_retry.errors import InvalidSetting, NoDestination
from celery_dlx_retry.operations.connect import require_rabbitmq
from celery_dlx_retry.operations.operation_errors import UnknownQueue

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from kombu.entity import Queue

    from celery_dlx_retry.broker.management import Management
    from celery_dlx_retry.deadletters.letter import DeadMessage
    from celery_dlx_retry.settings import QueueType
    from celery_dlx_retry.topology.names import Names


_UUID_LENGTH = 36


def load_tasks(app: Any) -> None:
    """Import the modules of the app's tasks, as a worker does at its start."""
    app.loader.import_default_modules()
    app.finalize()


def consumed_queues(app: Any, names: Iterable[str] = ()) -> list[Queue]:
    """Return the queues that a worker consumes with these names as its ``-Q``; load the app's tasks first.

    Raise UnknownQueue for a name that Celery may not create, NeedsRabbitMQ if the app has another broker.
    """
    load_tasks(app)
    require_rabbitmq(app)
    queues = app.amqp.queues
    wanted = list(names)
    if not wanted:
        return list(queues.consume_from.values())
    known = set(queues)
    try:
        return [_queue(queues, name) for name in wanted]
    finally:
        for name in set(queues) - known:  # Celery created it for this call
            queues.pop(name)


def _queue(queues: Any, name: str) -> Queue:
    try:
        return queues[name]
    except (KeyError, ImproperlyConfigured) as exc:
        raise UnknownQueue(queue=name) from exc


def known_work_queues(app: Any) -> list[str]:
    """Return the queues of the app and of its routes. Celery creates the latter when it first sends a task there."""
    routed = _routed(app.conf.task_routes)
    return list(dict.fromkeys([*(queue.alias or queue.name for queue in app.amqp.queues.values()), *routed]))


def _routed(routes: Any) -> Iterator[str]:
    """Yield the queues in Celery's ``task_routes``, in any of its notations but a function."""
    for route in routes if isinstance(routes, (list, tuple)) else [routes]:
        pairs = route.items() if isinstance(route, Mapping) else route if isinstance(route, (list, tuple)) else ()
        for _, where in pairs:
            queue = where.get("queue") if isinstance(where, Mapping) else where
            if queue:
                yield str(getattr(queue, "name", queue))


def all_dead_letter_queues(management: Management, names: Names) -> dict[str, str]:
    """Return every dead-letter queue under our prefix with its work queue.

    This includes those of work queues that only ``celery worker -Q`` names.
    """
    found = [binding for binding in management.bindings() if binding.exchange == names.dead()]
    return {binding.queue: binding.routing_key for binding in sorted(found, key=lambda it: it.queue)}


def type_in_api(facts: Mapping[str, dict[str, Any]], queue: str) -> QueueType:
    """Return the type of a queue in the answer of the HTTP API."""
    return "quorum" if facts.get(queue, {}).get("type") == "quorum" else "classic"


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
