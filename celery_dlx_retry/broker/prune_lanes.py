"""Delete empty lanes when an operator asks for it.

A lane that RabbitMQ calls empty may still hold messages: expired ones that their work queue did not take yet. AMQP does
not show them and no consumer gets them; only the HTTP API counts them
(test_a_lane_whose_work_queue_is_full_is_not_pruned). So prune needs the HTTP API, and waits until its counts are newer
than the moment at which the lane was unbound.
"""

from __future__ import annotations

import time
from contextlib import closing, suppress
from typing import TYPE_CHECKING

from amqp.exceptions import AccessRefused, AMQPError, NotFound

from celery_dlx_retry.broker.declare import bind
from celery_dlx_retry.broker.lane_lock import lane_lock
from celery_dlx_retry.broker.peek import counts
from celery_dlx_retry.errors import DLXError, Forbidden, Missing
from celery_dlx_retry.topology.specs import BindingSpec, Topology

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from kombu.connection import Connection

    from celery_dlx_retry.broker.management import Management
    from celery_dlx_retry.topology.names import Lane, Names

# Each queue counts every five seconds, and the HTTP API asks for the counts every five seconds.
COUNT_SECONDS = 12.0
# It keeps an answer for five times as long as it took, and gives it again: "management.db_cache_multiplier".
_CACHED_TIMES = 5
_LOCK_SECONDS = 30.0

_HOLDS = "something waits in it"
_LOOKED_INTO = "a process reads it"
_USED_AGAIN = "in use again"


def prune(  # noqa: PLR0913 - all keywords but two
    connection: Connection,
    names: Names,
    lanes: Iterable[Lane],
    *,
    management: Management,
    count_seconds: float = COUNT_SECONDS,
    pause: Callable[[float], None] = time.sleep,  # noqa: TID251 - the broker does not say when its counts are fresh
) -> Iterator[tuple[Lane, str]]:
    """Delete the lanes that no process uses; yield each with the reason why it stays, or with an empty text.

    The lane is unbound first: a publisher that needs it finds no route and binds it again, under the lock. When the
    counts are fresh, a lane that is still unbound and holds nothing is deleted, under the lock, too. So no process can
    bind it between the last look and the delete. If ``pause`` raises an error, the lanes are bound again.
    """
    begun = time.monotonic()
    candidates, holding = [], _reasons(management, lanes)
    answer_seconds = time.monotonic() - begun
    for lane, reason in holding.items():
        if reason:
            yield lane, reason
        else:
            candidates.append(lane)
    if not candidates:
        return
    unbound = dict.fromkeys(candidates)
    outcome: list[tuple[Lane, str]] = []
    try:
        with lane_lock(connection, names, within=_LOCK_SECONDS):
            for lane in candidates:
                _unbind(connection, names, lane)
        pause(count_seconds + _CACHED_TIMES * answer_seconds)
        with lane_lock(connection, names, within=_LOCK_SECONDS):
            bound = {it.queue for it in management.bindings() if it.exchange}
            # This count misses some messages, but it is current.
            filled = {name for name, it in counts(connection, [it.name for it in candidates]).items() if it.ready}
            for lane, holds in _reasons(management, candidates).items():
                reason = _USED_AGAIN if lane.name in bound else _HOLDS if lane.name in filled else holds
                if reason:
                    bind(connection, _binding_of(names, lane))
                else:
                    _delete(connection, lane)
                del unbound[lane]
                outcome.append((lane, reason))
    finally:
        if unbound:  # Ctrl-C, or an error
            _bind_again(connection, names, unbound)
    yield from outcome


def _bind_again(connection: Connection, names: Names, lanes: Iterable[Lane]) -> None:
    with (
        suppress(AMQPError, OSError, DLXError),
        connection.clone() as fresh,
        lane_lock(fresh, names, within=_LOCK_SECONDS),
    ):
        for lane in lanes:
            with suppress(Missing):
                bind(fresh, _binding_of(names, lane))


def _reasons(management: Management, lanes: Iterable[Lane]) -> dict[Lane, str]:
    """Return why each lane that exists must stay; empty if it need not."""
    queues = management.queues()
    return {
        lane: _LOOKED_INTO if queues[lane.name].get("consumers") else "" if _is_empty(queues[lane.name]) else _HOLDS
        for lane in lanes
        if lane.name in queues
    }


def _is_empty(facts: dict[str, object]) -> bool:
    # A queue without an answering leader has no counts at all.
    return facts.get("messages") == 0


def _binding_of(names: Names, lane: Lane) -> Topology:
    if lane.queue:
        binding = BindingSpec(exchange=names.lanes(), queue=lane.name, routing_key=lane.name)
    else:
        binding = BindingSpec(exchange=lane.name, queue=lane.name)
    return Topology(bindings=(binding,))


def _unbind(connection: Connection, names: Names, lane: Lane) -> None:
    (binding,) = _binding_of(names, lane).bindings
    with closing(connection.channel()) as channel:
        try:
            channel.queue_unbind(binding.queue, binding.exchange, binding.routing_key)
        except NotFound:
            return  # another process deleted it
        except AccessRefused as exc:
            raise Forbidden(kind="queue", name=lane.name, permission="unbind") from exc


def _delete(connection: Connection, lane: Lane) -> None:
    with closing(connection.channel()) as channel:
        try:
            channel.queue_delete(lane.name)
            if not lane.queue:
                channel.exchange_delete(lane.name, if_unused=True)
        except AccessRefused as exc:
            raise Forbidden(kind="queue", name=lane.name, permission="configure") from exc
