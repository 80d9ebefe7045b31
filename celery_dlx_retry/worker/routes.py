"""Where Celery would send a message, as the one queue that it would lie in."""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING, Any

from celery import Celery
from kombu.common import Broadcast
from kombu.entity import Exchange

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kombu.entity import Queue

# All other options of a task are the router's to see and to change.
_NOT_ROUTED = frozenset(inspect.signature(Celery.send_task).parameters) | {"ignore_result"}


class NoRouter:
    """In place of Celery's: three of four ways to name a lane would be routed on, into a loop without delay."""

    def route(self, options: dict[str, Any], *_: Any) -> dict[str, Any]:
        """The options as they are."""
        return options


def routed(task: Any, args: Any, kwargs: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """All options of a call of a task, after Celery's router has had its say."""
    every = {**task._get_exec_options(), **options}  # noqa: SLF001 - as Task.apply_async does
    routable = {name: value for name, value in every.items() if name not in _NOT_ROUTED}
    router = options.get("router") or task.app.amqp.router
    route = router.route(routable, options.get("route_name") or task.name, args, kwargs, task)
    return {**{name: value for name, value in every.items() if name in _NOT_ROUTED}, **route}


def destination(app: Celery, options: Mapping[str, Any]) -> Queue | None:
    """The queue that routed options lead to; None if that is several, unknown, or one per worker."""
    queue, exchange, key = options.get("queue"), options.get("exchange"), options.get("routing_key")
    if queue is None and exchange is None:
        queue = app.amqp.default_queue
    if isinstance(queue, str):
        queue = app.amqp.queues[queue]
    kind = options.get("exchange_type") or (queue.exchange.type if queue is not None else "direct")
    if isinstance(exchange, Exchange):
        exchange = exchange.name
    if kind == "direct" and not (exchange and key):
        # Celery then names the queue itself, around every exchange.
        return None if isinstance(queue, Broadcast) else queue
    if exchange is None and queue is not None:
        exchange, key = queue.exchange.name, key or queue.routing_key
    return _behind(app, exchange or "", key or "", given=queue)


def _behind(app: Celery, exchange: str, routing_key: str, *, given: Queue | None) -> Queue | None:
    """The queue of the app, or that which is given, that an exchange and a routing key lead to, if it is one."""
    known = {**app.amqp.queues, **({given.name: given} if given is not None else {})}
    found = [queue for queue in known.values() if queue.exchange.name == exchange]
    # Who is on a fanout or headers exchange is more than one app can know.
    if any(queue.exchange.type not in {"direct", "topic"} for queue in found):
        return None
    taking = [queue for queue in found if _takes(queue, routing_key)]
    return taking[0] if len(taking) == 1 else None


def _takes(queue: Queue, routing_key: str) -> bool:
    if queue.exchange.type == "direct":
        return bool(queue.routing_key == routing_key)
    # "#." and ".#" stand for any number of words with their dots, also for none.
    pattern = re.escape(queue.routing_key).replace(r"\*", r"[^.]*")
    pattern = pattern.replace(r"\#\.", "(?:.*\\.)?").replace(r"\.\#", "(?:\\..*)?").replace(r"\#", ".*")
    return bool(re.fullmatch(pattern, routing_key))
