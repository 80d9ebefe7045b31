"""Make a topology stand on the broker, or check that it does; what the broker answers becomes one of our errors."""

from __future__ import annotations

import re
import time
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

from amqp.exceptions import AccessRefused, NotFound, PreconditionFailed

from celery_dlx_retry.core.topology import Topology
from celery_dlx_retry.errors import Forbidden, Mismatch, Missing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kombu.connection import Connection

    from celery_dlx_retry.core.topology import ExchangeSpec, QueueSpec

# A quorum queue that is killed with its only node within about a second of its birth does not come back, nor do the
# messages that it had confirmed (facts: RabbitMQ 3.10 to 4.3).
SETTLE_SECONDS = 2.0

# Up to RabbitMQ 4.0 its name does come back: it can be declared, and never answers. To delete it takes five seconds.
_ANSWER_SECONDS = 5.0
_DELETE_SECONDS = 20.0


def declare(connection: Connection, topology: Topology) -> None:
    """Declare all of it; what stands already is left as it is.

    Queues come before the exchanges that lead to them, and new quorum queues get time to settle in between: whoever
    finds a lane's exchange finds a wait queue behind it that a crash does not take away.
    """
    is_settled = _is_settled(connection, topology)
    doubtful = [] if is_settled else _doubtful(connection, topology)
    with closing(connection.channel()) as channel:
        for queue in topology.queues:
            _declare_queue(channel, queue)
        if not is_settled:
            _settle()
        for queue in doubtful:
            _replace_if_deaf(connection, queue, topology)
        _lead(channel, topology)


def begin(connection: Connection, topology: Topology) -> bool:
    """Declare it for somebody who must not wait: True if all of it stands then.

    If not, its queues are new: ``finish`` is to be called SETTLE_SECONDS later.
    """
    is_settled = _is_settled(connection, topology)
    with closing(connection.channel()) as channel:
        for queue in topology.queues:
            _declare_queue(channel, queue)
        if is_settled:
            _lead(channel, topology)
    return is_settled


def finish(connection: Connection, topology: Topology) -> None:
    """Lead to queues that were declared SETTLE_SECONDS ago."""
    with closing(connection.channel()) as channel:
        _lead(channel, topology)


def check(connection: Connection, topology: Topology) -> None:
    """Raise Missing for the first queue or exchange that is not there, Forbidden if we may not even look.

    AMQP cannot show arguments and bindings; after 4.0 RabbitMQ lets only those look who may configure, write or read.
    """
    with closing(connection.channel()) as channel:
        for queue in topology.queues:
            with _translated("queue", queue.name):
                channel.queue_declare(queue.name, passive=True)
        for exchange in topology.exchanges:
            with _translated("exchange", exchange.name):
                channel.exchange_declare(exchange.name, exchange.kind, passive=True)


def _lead(channel: Any, topology: Topology) -> None:
    for exchange in topology.exchanges:
        with _translated("exchange", exchange.name, permission=_to_make(exchange)):
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


def _is_settled(connection: Connection, topology: Topology) -> bool:
    """Whether no quorum queue is new: a queue whose exchange is missing may be another process's, made just now."""
    quorum = tuple(queue for queue in topology.queues if queue.is_quorum)
    return not quorum or _stands(connection, Topology(queues=quorum, exchanges=topology.exchanges))


def _stands(connection: Connection, topology: Topology) -> bool:
    try:
        check(connection, topology)
    except Missing:
        return False
    return True


def _doubtful(connection: Connection, topology: Topology) -> list[QueueSpec]:
    """Quorum queues without the exchange that leads to them: somebody has just made them, or died while doing so."""
    unreached = _unreached(connection, topology)
    return [
        queue
        for queue in topology.queues
        if queue.is_quorum and queue.name in unreached and _stands(connection, Topology(queues=(queue,)))
    ]


def _unreached(connection: Connection, topology: Topology) -> set[str]:
    """Queues that an exchange which does not stand is to lead to."""
    missing = {
        exchange.name for exchange in topology.exchanges if not _stands(connection, Topology(exchanges=(exchange,)))
    }
    return {binding.queue for binding in topology.bindings if binding.exchange in missing}


def _replace_if_deaf(connection: Connection, queue: QueueSpec, topology: Topology) -> None:
    """Make a queue anew that can be declared and never answers; nothing leads to it yet, so nothing is in it."""
    with _alone(connection, timeout=_ANSWER_SECONDS) as channel:
        try:
            message = channel.basic_get(queue.name)
        except AccessRefused:
            return  # we may not look
        except TimeoutError:
            pass
        else:
            if message is not None:
                channel.basic_reject(message.delivery_tag, requeue=True)
            return
    if queue.name not in _unreached(connection, topology):
        return  # somebody else has it, and has used it: it is the broker that is slow
    with _alone(connection, timeout=_DELETE_SECONDS) as channel:
        # This does answer, unless it is the broker that hangs.
        if channel.queue_declare(queue.name, passive=True).message_count:
            return
        channel.queue_delete(queue.name)
        _declare_queue(channel, queue)
        _settle()


@contextmanager
def _alone(connection: Connection, *, timeout: float) -> Iterator[Any]:
    """A channel on a connection of its own, which is given up if there is no answer."""
    with connection.clone(heartbeat=0) as own:
        try:
            own.connection.transport.sock.settimeout(timeout)
            yield own.default_channel
        finally:
            own.collect()


def _declare_queue(channel: Any, queue: QueueSpec) -> None:
    with _translated("queue", queue.name, permission=_to_make(queue)):
        channel.queue_declare(queue.name, durable=True, auto_delete=False, arguments=dict(queue.arguments))


def _to_make(it: QueueSpec | ExchangeSpec) -> str:
    """What it takes; RabbitMQ 3 does not say which of the two is missing."""
    leads_on = {"x-dead-letter-exchange", "alternate-exchange"}.intersection(dict(it.arguments))
    return "configure and read" if leads_on else "configure"


def _settle() -> None:
    time.sleep(SETTLE_SECONDS)  # noqa: TID251 - nothing to poll: the broker does not tell when it has settled


@contextmanager
def _translated(kind: str, name: str, *, permission: str = "configure") -> Iterator[None]:
    try:
        yield
    except PreconditionFailed as exc:
        raise _mismatch(kind, name, exc.reply_text or "") from exc
    except AccessRefused as exc:
        raise _forbidden(kind, name, permission, exc.reply_text or "") from exc
    except NotFound as exc:
        raise Missing(
            kind=kind, name=name, cure="Start a worker whose user may declare it, with dlx_declare = True."
        ) from exc


def _forbidden(kind: str, name: str, permission: str, text: str) -> Forbidden:
    """From "… access to exchange 'x' in vhost …": who makes a queue must be allowed what it leads to, too."""
    found = re.search(r"(?:(\w+) )?access to (queue|exchange) '(.+)' in vhost", text)
    if permission.startswith("bind"):
        return Forbidden(kind=kind, name=name, permission=permission)
    if found and found[3] != name:
        return Forbidden(kind=found[2], name=found[3], permission=f"use, for the {kind} {name!r},")
    return Forbidden(kind=kind, name=name, permission=found[1] if found and found[1] else permission)


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
