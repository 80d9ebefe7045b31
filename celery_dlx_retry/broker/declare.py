"""Make a topology stand on the broker, or check that it does; what the broker answers becomes one of our errors."""

from __future__ import annotations

import re
import time
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

from amqp.exceptions import AccessRefused, NotFound, PreconditionFailed

from celery_dlx_retry.core.topology import Topology
from celery_dlx_retry.errors import Forbidden, Mismatch, Missing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kombu.connection import Connection

# A quorum queue that is killed with its only node within about a second of its birth does not come back, nor do the
# messages that it had confirmed (facts: RabbitMQ 3.10 to 4.3).
SETTLE_SECONDS = 2.0


def declare(connection: Connection, topology: Topology) -> None:
    """Declare all of it; what stands already is left as it is.

    Queues come before the exchanges that lead to them, and new quorum queues get time to settle in between: whoever
    finds a lane's exchange finds a wait queue behind it that a crash does not take away.
    """
    settle = not _settled(connection, topology)
    with closing(connection.channel()) as channel:
        for queue in topology.queues:
            with _translated("queue", queue.name):
                channel.queue_declare(queue.name, durable=True, auto_delete=False, arguments=dict(queue.arguments))
        if settle:
            time.sleep(SETTLE_SECONDS)  # noqa: TID251 - nothing to poll: the broker does not tell when it has settled
        for exchange in topology.exchanges:
            with _translated("exchange", exchange.name):
                channel.exchange_declare(
                    exchange.name,
                    exchange.kind,
                    durable=True,
                    auto_delete=exchange.auto_delete,
                    arguments=dict(exchange.arguments),
                )
        for binding in topology.bindings:
            with _translated("queue", binding.queue, permission=f"bind to {binding.exchange!r}"):
                channel.queue_bind(
                    binding.queue,
                    binding.exchange,
                    routing_key=binding.routing_key,
                    arguments=dict(binding.arguments),
                )


def check(connection: Connection, topology: Topology) -> None:
    """Raise Missing for the first queue or exchange that is not there, Forbidden if we may not even look.

    AMQP cannot show arguments and bindings; RabbitMQ 4 lets only those look who may configure, write or read it.
    """
    with closing(connection.channel()) as channel:
        for queue in topology.queues:
            with _translated("queue", queue.name):
                channel.queue_declare(queue.name, passive=True)
        for exchange in topology.exchanges:
            with _translated("exchange", exchange.name):
                channel.exchange_declare(exchange.name, exchange.kind, passive=True)


def _settled(connection: Connection, topology: Topology) -> bool:
    """Whether no quorum queue is new: a queue whose exchange is missing may be another process's, made just now."""
    quorum = tuple(queue for queue in topology.queues if queue.is_quorum)
    if not quorum:
        return True
    try:
        check(connection, Topology(queues=quorum, exchanges=topology.exchanges))
    except Missing:
        return False
    return True


@contextmanager
def _translated(kind: str, name: str, *, permission: str = "configure") -> Iterator[None]:
    try:
        yield
    except PreconditionFailed as exc:
        raise _mismatch(kind, name, exc.reply_text or "") from exc
    except AccessRefused as exc:
        raise Forbidden(kind=kind, name=name, permission=permission) from exc
    except NotFound as exc:
        raise Missing(
            kind=kind, name=name, cure="Start a worker whose user may declare it, with dlx_declare = True."
        ) from exc


def _mismatch(kind: str, name: str, text: str) -> Mismatch:
    """From "inequivalent arg 'x' for queue 'q' in vhost '/': received the value 'a' of … but current is …"."""
    found = re.search(r"inequivalent arg '([^']+)'.*: received (.+) but current is (.+)$", text, re.DOTALL)
    if not found:
        return Mismatch(kind=kind, name=name, argument="other arguments", found=text, wanted="our own")
    argument, wanted, current = found.groups()
    return Mismatch(kind=kind, name=name, argument=argument, found=_value(current), wanted=_value(wanted))


def _value(text: str) -> str:
    quoted = re.search(r"'([^']*)'", text)
    return quoted.group(1) if quoted else text
