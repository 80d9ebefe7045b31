"""dlx_queue(), which makes a Kombu queue, and facts about Kombu queues."""

from __future__ import annotations

import re
from contextlib import closing
from typing import TYPE_CHECKING, Any

from amqp.exceptions import AccessRefused, NotFound, PreconditionFailed, ResourceLocked
from kombu.entity import Exchange, Queue

from celery_dlx_retry.errors import Forbidden, InvalidDelay, InvalidQueue
from celery_dlx_retry.policy.policies import MAX_DELAY_MS
from celery_dlx_retry.sentences import brief
from celery_dlx_retry.settings import A_PREFIX, is_prefix
from celery_dlx_retry.topology.names import Names, WorkQueue
from celery_dlx_retry.values.durations import is_count, to_ms
from celery_dlx_retry.values.queue_names import name_problem, new_name_problem

if TYPE_CHECKING:
    from kombu.connection import Connection

    from celery_dlx_retry.settings import QueueType
    from celery_dlx_retry.values.durations import Seconds

_DELAYED_RETRY = "x-delayed-retry-type"

_DEAD = Names(prefix="").dead()
#: RabbitMQ counts in 63 bits, and has 255 priorities.
_MOST = {"delivery_limit": 2**63 - 1, "max_length": 2**63 - 1, "max_priority": 255}


def dlx_queue(  # noqa: PLR0913 - one obvious positional, the rest are a queue's arguments
    name: str,
    *,
    queue_type: QueueType = "classic",
    exchange: Exchange | str | None = None,
    routing_key: str | None = None,
    delivery_limit: int | None = None,
    max_length: int | None = None,
    max_priority: int | None = None,
    delayed_retry: Seconds | tuple[Seconds, Seconds] | None = None,
    prefix: str = "dlx",
) -> Queue:
    """Make a work queue for ``task_queues`` that keeps messages which RabbitMQ itself drops.

    A message that is rejected, over the delivery limit or over the length limit goes to the same dead-letter queue as
    the tasks that we give up. Do not use it for a queue that exists without these arguments: RabbitMQ refuses to change
    them (406). Plain queues work with DLXRetryTask as they are.

    ``delayed_retry`` is for quorum queues of RabbitMQ 4.3 and newer: a task that a dead worker did not finish comes
    back after that many seconds, after twice as many the next time, and so on. A second number limits this. On an older
    broker the worker does not start.

    ``prefix`` must be the app's ``dlx_prefix``.
    """
    _check_names(name, exchange=exchange, routing_key=routing_key, prefix=prefix)
    _check(name, queue_type, delivery_limit=delivery_limit, max_length=max_length, max_priority=max_priority)
    arguments: dict[str, Any] = {
        "x-queue-type": queue_type,
        "x-dead-letter-exchange": Names(prefix=prefix).dead(),
        "x-dead-letter-routing-key": name,
    }
    limits = {"x-max-length": max_length, "x-max-priority": max_priority, "x-delivery-limit": delivery_limit}
    arguments |= {key: value for key, value in limits.items() if value is not None}
    if delayed_retry is not None:
        arguments |= _delayed_retry(name, queue_type, delayed_retry)
    if queue_type == "quorum" and max_length is None:
        arguments |= {"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"}
    if not isinstance(exchange, Exchange):
        exchange = Exchange(exchange or name, type="direct")
    return Queue(name, exchange, routing_key=routing_key or name, queue_arguments=arguments)


def _check_names(name: Any, *, exchange: Any, routing_key: Any, prefix: Any) -> None:
    # AMQP names have 255 bytes, and the name of the dead-letter queue is longer than this one.
    if problem := new_name_problem(name, most=200):
        raise InvalidQueue(queue=name, problem=f"this is not a name for a queue: {problem}")
    texts = {"exchange": None if isinstance(exchange, Exchange) else exchange, "routing_key": routing_key}
    for argument, value in texts.items():
        # None and "" mean the name of the queue.
        if value not in (None, "") and (problem := name_problem(value)):
            raise InvalidQueue(queue=name, problem=f"{argument} is {brief(value)}; {problem}")
    if not is_prefix(prefix):
        raise InvalidQueue(queue=name, problem=f"prefix is {brief(prefix)}; it must be {A_PREFIX}")


def _check(name: str, queue_type: Any, **numbers: Any) -> None:
    if queue_type not in ("classic", "quorum"):
        raise InvalidQueue(queue=name, problem=f'queue_type is {brief(queue_type)}; it must be "classic" or "quorum"')
    if numbers["delivery_limit"] is not None and queue_type != "quorum":
        raise InvalidQueue(queue=name, problem='only quorum queues have a delivery limit; set queue_type="quorum"')
    if numbers["max_priority"] is not None and queue_type != "classic":
        raise InvalidQueue(queue=name, problem="only classic queues take max_priority; quorum queues need none")
    for argument, value in numbers.items():
        most = _MOST[argument]
        if value is not None and not (is_count(value) and 1 <= value <= most):
            problem = f"{argument} is {brief(value)}; it must be a whole number from 1 to {most}"
            raise InvalidQueue(queue=name, problem=problem)


def _delayed_retry(name: str, queue_type: str, given: Seconds | tuple[Seconds, Seconds]) -> dict[str, Any]:
    if queue_type != "quorum":
        raise InvalidQueue(queue=name, problem='only quorum queues have a delayed retry; set queue_type="quorum"')
    try:
        lengths = [to_ms(it, what="delayed_retry") for it in (given if isinstance(given, tuple) else (given,))]
    except InvalidDelay:
        lengths = []
    if len(lengths) not in {1, 2} or not 1 <= lengths[0] <= lengths[-1] <= MAX_DELAY_MS:
        wanted = "seconds or a timedelta from 1 ms to ten years, or a pair of them: the first and the longest"
        raise InvalidQueue(queue=name, problem=f"delayed_retry is {brief(given)}; it must be {wanted}")
    first, *longest = lengths
    # Not "all": a task that a worker gives back by basic.nack did not run, and need not wait.
    arguments = {_DELAYED_RETRY: "failed", "x-delayed-retry-min": first}
    return {**arguments, "x-delayed-retry-max": longest[0]} if longest else arguments


def has_delayed_retry(queue: Queue) -> bool:
    """Return whether a queue has a delayed retry, which only RabbitMQ 4.3 and newer have."""
    return bool((queue.queue_arguments or {}).get(_DELAYED_RETRY, "disabled") != "disabled")


def check_prefix(queue: Queue, names: Names) -> None:
    """Raise InvalidQueue if dlx_queue() has another prefix than the app: no worker would make that exchange."""
    exchange = (queue.queue_arguments or {}).get("x-dead-letter-exchange")
    other = str(exchange).removesuffix(_DEAD)
    if other in {str(exchange), names.prefix}:
        return
    raise InvalidQueue(
        queue=queue.name,
        problem=f"its dead letters go to {exchange!r}, and dlx_prefix is {names.prefix!r}, which has {names.dead()!r}; "
        f"write dlx_queue({queue.name!r}, prefix={names.prefix!r}), or set dlx_prefix = {other!r}",
    )


def work_queue(queue: Queue) -> WorkQueue:
    """Return the work queue of a Kombu queue."""
    return WorkQueue(name=queue.name, dead_letter_key=queue.alias or queue.name)


def declare_if_missing(connection: Connection, queue: Queue) -> None:
    """Declare a work queue if it does not exist; do not change one that exists."""
    try:
        with closing(connection.channel()) as channel:
            try:
                channel.queue_declare(queue.name, passive=True)
            except NotFound:
                queue(connection.default_channel).declare()
    except AccessRefused as exc:
        raise Forbidden(kind="queue", name=queue.name, permission="declare") from exc


def declared_kind(queue: Queue) -> QueueType | None:
    """Return the type that the arguments of a queue name; None if they leave it to the broker."""
    named = (queue.queue_arguments or {}).get("x-queue-type")
    return None if named is None else "quorum" if named == "quorum" else "classic"


def found_kind(connection: Connection, queue: Queue) -> QueueType | None:
    """Return the type of an existing queue whose arguments do not name it: a virtual host has a default.

    Return None if the user may not configure the queue: then the broker does not name the type.

    AMQP shows no arguments. But a declare with a type that does not exist changes nothing and is always refused, and
    the refusal names the type of the queue (test_the_type_of_a_queue_is_found_without_touching_it).
    """
    with closing(connection.channel()) as channel:
        text = _refusal(channel, queue, "which")
        if "ACCESS_REFUSED" in text:
            return None
        if "inequivalent arg 'x-queue-type'" not in text:
            return "classic"
        if match := re.search(r"current is '(\w+)'", text):
            return "quorum" if match[1] == "quorum" else "classic"
        # The broker cuts its text at 255 bytes, and a long name hides the type. The queue exists, so a declare as
        # quorum changes nothing, either (test_the_type_of_a_queue_with_a_long_name_is_found).
        return "classic" if _refusal(channel, queue, "quorum") else "quorum"


def is_surely_classic(connection: Connection, name: str) -> bool:
    """Return True only if the broker names the type; False without permission, or if its text is cut."""
    with closing(connection.channel()) as channel:
        return "current is 'classic'" in _refusal(channel, Queue(name, durable=True), "which")


def _refusal(channel: Any, queue: Queue, queue_type: str) -> str:
    """Return the broker's refusal to declare the queue with this type; empty if the queue has this type."""
    asked = queue(channel)
    asked.queue_arguments = {**(queue.queue_arguments or {}), "x-queue-type": queue_type}
    try:
        asked.queue_declare()
    except (PreconditionFailed, AccessRefused, ResourceLocked) as exc:
        return str(exc)
    return ""
