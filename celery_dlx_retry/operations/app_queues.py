"""The work queues of an app, for every command: those that the app names, and those that only the broker shows."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, get_args

from celery.exceptions import ImproperlyConfigured
from kombu.common import Broadcast

from celery_dlx_retry.app.context import context_of
from celery_dlx_retry.app.routes import routed
from celery_dlx_retry.errors import InvalidSetting, NoDestination
from celery_dlx_retry.operations.connect import require_rabbitmq
from celery_dlx_retry.operations.operation_errors import UnknownQueue
from celery_dlx_retry.settings import QueueType

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from kombu.entity import Queue

    from celery_dlx_retry.broker.management import Management
    from celery_dlx_retry.deadletters.letter import DeadMessage
    from celery_dlx_retry.topology.names import Names


_UUID_LENGTH = 36


def load_tasks(app: Any) -> None:
    """Import the modules of the app's tasks, as a worker does at its start; in Django, also its models."""
    app.loader.import_default_modules()
    app.finalize()


def work_queues_of(app: Any, names: Iterable[str] = ()) -> list[Queue]:
    """Return the work queues with these names; by default all work queues of the app. Load the app's tasks first.

    Raise UnknownQueue for a name that Celery may not create, NeedsRabbitMQ if the app has another broker.
    """
    load_tasks(app)
    require_rabbitmq(app)
    queues, wanted = app.amqp.queues, list(names)
    with _unchanged(queues):
        if wanted:
            return [_queue(queues, name) for name in wanted]
        found = list(queues.consume_from.values())
        for name in known_work_queues(app):
            with suppress(UnknownQueue):
                found += [queue] if (queue := _queue(queues, name)) not in found else []
        return found


def known_work_queues(app: Any) -> list[str]:
    """Return the queues of the app, of its routes and of its tasks; a broadcast queue by its alias.

    Celery creates those of routes and tasks when it first sends a task there.
    """
    load_tasks(app)
    known = [queue.alias or queue.name for queue in app.amqp.queues.values()]
    with _unchanged(app.amqp.queues):
        return list(dict.fromkeys([*known, *_routed(app.conf.task_routes), *_queues_of_tasks(app)]))


def _queue(queues: Any, name: str) -> Queue:
    by_alias = [it for it in queues.values() if it.alias == name]
    try:
        return by_alias[0] if by_alias else queues[name]
    except (KeyError, ImproperlyConfigured) as exc:
        raise UnknownQueue(queue=name) from exc


@contextmanager
def _unchanged(queues: Any) -> Iterator[None]:
    """Remove afterwards the queues that Celery creates when it is asked for them: a worker would consume them."""
    known = set(queues)
    try:
        yield
    finally:
        for name in set(queues) - known:
            queues.pop(name)


def _routed(routes: Any) -> Iterator[str]:
    """Yield the queues in Celery's ``task_routes``, in any of its notations but a function."""
    for route in routes if isinstance(routes, (list, tuple)) else [routes]:
        pairs = route.items() if isinstance(route, Mapping) else route if isinstance(route, (list, tuple)) else ()
        for _, where in pairs:
            queue = where.get("queue") if isinstance(where, Mapping) else where
            if queue:
                yield _name(queue)


def _queues_of_tasks(app: Any) -> Iterator[str]:
    """Yield where each task goes that says so itself (``queue=``), or that a function in ``task_routes`` sends."""
    for name, task in app.tasks.items():
        if name.startswith("celery."):
            continue  # Celery's own
        with suppress(Exception):  # a router of the user's, called without arguments
            queue = routed(task, (), {}, {}).get("queue")
            if queue:
                yield _name(queue)


def _name(queue: Any) -> str:
    return str(getattr(queue, "alias", None) or getattr(queue, "name", queue))


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuesOnBroker:
    """What is bound under our prefix, also for work queues that only ``celery worker -Q`` names."""

    #: Work queues to which waiting tasks come back.
    work: frozenset[str] = frozenset()
    #: Dead-letter queue -> its work queue, or the alias of a broadcast queue.
    dead: Mapping[str, str] = field(default_factory=dict)


def queues_on_broker(management: Management | None, names: Names) -> QueuesOnBroker:
    """Return the work queues and dead-letter queues that the HTTP API shows; none without it."""
    if management is None:
        return QueuesOnBroker()
    bindings = sorted(management.bindings(), key=lambda it: it.queue)
    returns = {replace(names, kind=kind).return_exchange() for kind in get_args(QueueType)}
    return QueuesOnBroker(
        work=frozenset(it.queue for it in bindings if it.exchange in returns),
        dead={it.queue: it.routing_key for it in bindings if it.exchange == names.dead()},
    )


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
