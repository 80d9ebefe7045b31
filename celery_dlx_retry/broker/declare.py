"""Declare a topology on the broker, and check that it exists. Refusals become our errors."""

from __future__ import annotations

import re
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from amqp.exceptions import AccessRefused, InternalError, NotFound, PreconditionFailed

from celery_dlx_retry.broker.header_frames import accept_undecodable_headers
from celery_dlx_retry.broker.paged_reader import give_back
from celery_dlx_retry.errors import Forbidden, Mismatch, Missing, NoAnswer
from celery_dlx_retry.topology.specs import Topology

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kombu.connection import Connection

    from celery_dlx_retry.topology.specs import ExchangeSpec, QueueSpec


# If its only node is killed within about a second after a quorum queue was made, the queue does not come back, and the
# messages that it had confirmed are lost (RabbitMQ 3.10 to 4.3).
SETTLE_SECONDS = 2.0

# How long a quorum queue may take to answer a get.
ANSWER_SECONDS = 5


def declare(connection: Connection, topology: Topology) -> None:
    """Declare all objects; those that exist stay as they are.

    Queues come before their exchanges, and new quorum queues get time to settle in between: so, if the exchange of a
    lane exists, its wait queue survives a crash of the broker. Raise NoAnswer if such a queue exists and does not
    answer. Nothing is deleted: an empty queue and one that recovers look the same.
    """
    is_settled = _is_settled(connection, topology)
    unreached = set() if is_settled else _unreached(connection, topology)
    with _opened(connection) as channel:
        for queue in topology.queues:
            _declare_queue(channel, queue)
        if not is_settled:
            _settle()
            require_answers(connection, [it.name for it in topology.queues if it.is_quorum and it.name in unreached])
        _declare_exchanges_and_bindings(channel, topology)


def declare_queues(connection: Connection, topology: Topology) -> None:
    """Declare only its queues; raise Mismatch if one exists with other arguments."""
    with _opened(connection) as channel:
        for queue in topology.queues:
            _declare_queue(channel, queue)


def bind(connection: Connection, topology: Topology) -> None:
    """Declare its exchanges and bind its queues, which exist."""
    with _opened(connection) as channel:
        _declare_exchanges_and_bindings(channel, topology)


def check(connection: Connection, topology: Topology) -> None:
    """Raise Missing for the first queue or exchange that does not exist, Forbidden if the user may not look.

    AMQP cannot show arguments and bindings. After 4.0 RabbitMQ shows an object only to users with a permission on it.
    """
    with _opened(connection) as channel:
        for queue in topology.queues:
            with _translated("queue", queue.name):
                channel.queue_declare(queue.name, passive=True)
        for exchange in topology.exchanges:
            with _translated("exchange", exchange.name):
                channel.exchange_declare(exchange.name, exchange.kind, passive=True)


def _declare_exchanges_and_bindings(channel: Any, topology: Topology) -> None:
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
    """Return whether no quorum queue is new. If its exchange is missing, another process may have just made it."""
    quorum = tuple(queue for queue in topology.queues if queue.is_quorum)
    return not quorum or exists(connection, Topology(queues=quorum, exchanges=topology.exchanges))


def exists(connection: Connection, topology: Topology) -> bool:
    """Return whether all its queues and exchanges exist."""
    try:
        check(connection, topology)
    except Missing:
        return False
    return True


def _unreached(connection: Connection, topology: Topology) -> set[str]:
    """Return the queues whose exchange does not exist yet."""
    missing = {
        exchange.name for exchange in topology.exchanges if not exists(connection, Topology(exchanges=(exchange,)))
    }
    return {binding.queue for binding in topology.bindings if binding.exchange in missing}


def require_answers(connection: Connection, names: list[str]) -> None:
    """Raise NoAnswer for the first of these quorum queues that does not answer.

    Only a get asks the queue itself. The node answers a passive declare, and reports 0 messages for a queue that
    recovers (test_a_dead_letter_queue_that_does_not_answer_keeps_its_letters). Up to RabbitMQ 4.0 a queue whose node
    was killed too early keeps its name and never answers.
    """
    if not names:
        return
    # On a separate connection, which is dropped without an answer.
    with connection.clone(heartbeat=0) as separate:
        try:
            separate.connection.transport.sock.settimeout(ANSWER_SECONDS)
            channel = separate.default_channel
            accept_undecodable_headers(separate)
            for name in names:
                with suppress(AccessRefused):  # this user may not look
                    _require_answer(channel, name)
        finally:
            separate.collect()


def _require_answer(channel: Any, name: str) -> None:
    try:
        message = channel.basic_get(name)
    except (TimeoutError, InternalError) as exc:
        # InternalError: the queue was deleted and declared again at the same moment, and has no process.
        raise NoAnswer(name=name, seconds=ANSWER_SECONDS) from exc
    if message is not None:
        give_back(channel, [message.delivery_tag])


@contextmanager
def _opened(connection: Connection) -> Iterator[Any]:
    """Open a channel for the block. After a lost connection or a timeout do not close it: that waits for an answer."""
    channel = connection.channel()
    try:
        yield channel
    except OSError:
        raise
    except BaseException:
        channel.close()
        raise
    channel.close()


def _declare_queue(channel: Any, queue: QueueSpec) -> None:
    with _translated("queue", queue.name, permission=_to_make(queue)):
        channel.queue_declare(queue.name, durable=True, auto_delete=False, arguments=dict(queue.arguments))


def _to_make(it: QueueSpec | ExchangeSpec) -> str:
    """Return the permissions to declare it; RabbitMQ 3 does not name the missing one."""
    leads_on = {"x-dead-letter-exchange", "alternate-exchange"}.intersection(dict(it.arguments))
    return "configure and read" if leads_on else "configure"


def _settle() -> None:
    time.sleep(SETTLE_SECONDS)  # noqa: TID251 - nothing to poll: the broker does not report that it has settled


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
    """Read "… access to exchange 'x' in vhost …": a queue also needs permissions on its dead-letter exchange."""
    match = re.search(r"(?:(\w+) )?access to (queue|exchange) '(.+)' in vhost", text)
    if permission.startswith("bind"):
        return Forbidden(kind=kind, name=name, permission=permission)
    if match and match[3] != name:
        return Forbidden(kind=match[2], name=match[3], permission=f"use, for the {kind} {name!r},")
    return Forbidden(kind=kind, name=name, permission=match[1] if match and match[1] else permission)


def _mismatch(kind: str, name: str, text: str) -> Mismatch:
    """Read "inequivalent arg 'x' for queue 'q' in vhost '/': received the value 'a' of … but current is …"."""
    match = re.search(r"inequivalent arg '([^']+)'.*: received (.+) but current is (.+)$", text, re.DOTALL)
    if not match:
        return Mismatch(kind=kind, name=name, argument="other arguments", found=text, wanted="our own")
    argument, wanted, current = match.groups()
    return Mismatch(kind=kind, name=name, argument=argument, found=_value(current), wanted=_value(wanted))


def _value(text: str) -> str:
    quoted = re.search(r"'([^']*)'", text)
    return quoted.group(1) if quoted else text
