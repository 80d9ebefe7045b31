"""Where Celery would send a message, as the one queue that it would lie in."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from celery import Celery
from kombu.common import Broadcast

from celery_dlx_retry.celery_compat import exec_options

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kombu.entity import Queue

# All other options of a task are the router's to see and to change.
_NOT_ROUTED = frozenset(inspect.signature(Celery.send_task).parameters) | {"ignore_result"}

#: Options of ``apply_async`` that say where a message goes.
PLACES = frozenset({"queue", "exchange", "routing_key", "exchange_type", "connection", "publisher"})


class NoRouter:
    """In place of Celery's: three of four ways to name a lane would be routed on, into a loop without delay."""

    def route(self, options: dict[str, Any], *_: Any) -> dict[str, Any]:
        """The options as they are."""
        return options


def all_options(task: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """Those of a call, and of the task where the call has none, as ``apply_async`` puts them together."""
    return {**exec_options(task), **options}


def routed(task: Any, args: Any, kwargs: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """All options of a call of a task, after Celery's router has had its say."""
    every = all_options(task, options)
    routable = {name: value for name, value in every.items() if name not in _NOT_ROUTED}
    router = options.get("router") or task.app.amqp.router
    route = router.route(routable, options.get("route_name") or task.name, args, kwargs, task)
    return {**{name: value for name, value in every.items() if name in _NOT_ROUTED}, **route}


def destination(app: Celery, options: Mapping[str, Any]) -> Queue | None:
    """The queue that Celery names itself, around every exchange; None if the message goes through an exchange.

    One app cannot know which other queues are bound to that exchange, and each of them must get its copy.
    """
    queue, exchange, key = options.get("queue"), options.get("exchange"), options.get("routing_key")
    if queue is None and exchange is None:
        queue = app.amqp.default_queue
    if isinstance(queue, str):
        queue = app.amqp.queues[queue]
    kind = options.get("exchange_type") or (queue.exchange.type if queue is not None else "direct")
    if kind != "direct" or (exchange and key) or isinstance(queue, Broadcast):
        return None
    return queue


def exchanges_of_tasks(app: Celery) -> set[str]:
    """The exchanges that Celery publishes the app's tasks to; the empty name is the default exchange.

    A router that is a function may decide by the arguments: then the default exchange is one of them.
    """
    found = set()
    for task in app.tasks.values():
        try:
            options = routed(task, (), {}, {})
            if destination(app, options) is not None:
                found.add("")
                continue
            queue: Any = options.get("queue")
            queue = app.amqp.queues[queue] if isinstance(queue, str) else queue
            exchange = options.get("exchange") or queue.exchange
            found.add(str(getattr(exchange, "name", exchange)))
        except Exception:  # noqa: BLE001 - a router of the user's, called without arguments
            found.add("")
    return found
