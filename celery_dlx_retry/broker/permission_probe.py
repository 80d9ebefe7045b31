"""Find the permissions that a broker user lacks, without making or changing anything."""

from __future__ import annotations

import secrets
from contextlib import closing, suppress
from operator import methodcaller
from typing import TYPE_CHECKING, Any

from amqp import Message
from amqp.exceptions import AccessRefused, NotFound

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from kombu.connection import Connection

    from celery_dlx_retry.topology.names import Names, WorkQueue


def forbidden(
    connection: Connection, names: Names, *, work_queues: Iterable[WorkQueue], declares: bool, sends_by_name: bool
) -> Iterator[str]:
    """Yield one sentence for each permission that is missing.

    The probes use a name that does not exist. RabbitMQ checks the permission first: it answers 403 if the permission is
    missing, else 404 or nothing.
    """
    name = f"{names.prefix}.v1.nothing.{secrets.token_hex(8)}"
    probes: dict[str, Callable[[Any], object]] = {
        "write": methodcaller("basic_publish_confirm", Message(), exchange=name, routing_key=""),
    }
    if declares:
        probes["read"] = methodcaller("basic_get", name)
        probes["configure"] = methodcaller("queue_delete", name)
    for permission, probe in probes.items():
        if _is_refused(connection, probe):
            yield f"The broker user {connection.userid!r} may not {permission} names like '{names.prefix}.v1.…'."
    # Celery does not wait for the broker's answer: a task that it sends by this exchange would be lost.
    straight = methodcaller("basic_publish_confirm", Message(), exchange="", routing_key=name)
    if sends_by_name and _is_refused(connection, straight):
        yield f"The broker user {connection.userid!r} may not send to queues by the exchange 'amq.default'."
    if not declares:
        return
    for queue in work_queues:
        # Remove a binding that does not exist: this needs the same permissions as making one.
        exchange = names.return_exchange()
        if _is_refused(connection, methodcaller("queue_unbind", queue.name, exchange, name)):
            yield f"The broker user {connection.userid!r} may not bind the work queue {queue.name!r} to {exchange!r}."


def _is_refused(connection: Connection, probe: Callable[[Any], object]) -> bool:
    with closing(connection.channel()) as channel, suppress(NotFound):
        try:
            probe(channel)
        except AccessRefused:
            return True
    return False
