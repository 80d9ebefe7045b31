"""The queues of an app: those that its workers consume, those that it knows, and the dead-letter queues it may have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from celery.exceptions import ImproperlyConfigured

from celery_dlx_retry.operations.connect import require_rabbitmq
from celery_dlx_retry.operations.operation_errors import UnknownQueue

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from kombu.entity import Queue

    from celery_dlx_retry.broker.management import Management
    from celery_dlx_retry.settings import QueueType
    from celery_dlx_retry.topology.names import Names


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
