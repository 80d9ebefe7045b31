"""The exchanges, queues and bindings that we declare, with their arguments."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from celery_dlx_retry.topology.names import LANDING_MS
from celery_dlx_retry.topology.specs import BindingSpec, ExchangeSpec, QueueSpec, Topology

if TYPE_CHECKING:
    from celery_dlx_retry.topology.names import Names, WorkQueue
    from celery_dlx_retry.topology.specs import Argument

# RabbitMQ 4 deletes a message at its 21st return to a quorum queue, so twenty looks at a dead letter would lose it. The
# limit -1 means "no limit" there, but "drop at the first return" on 3.x. A huge limit is safe on both
# (test_a_hundred_looks_leave_every_dead_letter_there,
# test_a_look_that_ends_with_a_lost_connection_leaves_every_dead_letter_there).
NO_DELIVERY_LIMIT = 1_000_000_000


def shared_objects(names: Names) -> Topology:
    """Return the objects that all work queues share."""
    orphans = names.orphans()
    return Topology(
        exchanges=(
            ExchangeSpec(name=names.dead(), kind="direct"),
            ExchangeSpec(name=names.lanes(), kind="direct"),
            ExchangeSpec(name=orphans, kind="fanout"),
            # If the work queue is gone, the default exchange would lose the message or block its lane. Ours parks the
            # message with the orphans (test_when_the_work_queue_is_gone_its_retries_are_parked).
            ExchangeSpec(name=names.return_exchange(), kind="direct", arguments=(("alternate-exchange", orphans),)),
        ),
        queues=(QueueSpec(name=orphans, arguments=_durable_arguments(names)),),
        bindings=(BindingSpec(exchange=orphans, queue=orphans),),
    )


def lane(names: Names, queue: WorkQueue, delay_ms: int, *, expires_ms: int = 0) -> Topology:
    """Return what messages of this work queue need to wait one fixed time.

    RabbitMQ expires messages only at the head of a queue, so each queue has one delay
    (test_a_short_delay_overtakes_a_long_one). Each work queue has its own lanes, because an at-least-once lane keeps at
    most 32 messages in flight: if a work queue accepts none, its lanes stop
    (test_a_full_work_queue_holds_up_no_other_one). A shared lane has a fanout exchange, so that the routing key can
    carry the name of the work queue through the wait.

    With ``expires_ms`` the broker deletes an idle lane, no sooner than that long after its last message left it. For
    this, publishers declare the lane again in time: see broker/lanes.py.
    """
    name = names.lane(queue, delay_ms, expires_ms=expires_ms)
    is_own = names.has_own_lanes(queue)
    spec = wait_queue(names, name, delay_ms=delay_ms, then=names.return_exchange())
    back: tuple[Argument, ...] = (("x-dead-letter-routing-key", queue.name),) if is_own else ()
    expires: tuple[Argument, ...] = (("x-expires", delay_ms + expires_ms),) if expires_ms else ()
    spec = replace(spec, arguments=spec.arguments + back + _limit(names) + expires)
    if is_own:
        binding = BindingSpec(exchange=names.lanes(), queue=name, routing_key=name)
        return Topology(
            exchanges=(ExchangeSpec(name=names.lanes(), kind="direct"),), queues=(spec,), bindings=(binding,)
        )
    return Topology(
        exchanges=(ExchangeSpec(name=name, kind="fanout", auto_delete=bool(expires_ms)),),
        queues=(spec,),
        bindings=(BindingSpec(exchange=name, queue=name),),
    )


def wait_queue(names: Names, name: str, *, delay_ms: int, then: str) -> QueueSpec:
    """Return a queue that keeps each message so long and then gives it to the exchange ``then``."""
    arguments: tuple[Argument, ...] = (("x-message-ttl", delay_ms), ("x-dead-letter-exchange", then))
    if names.kind == "quorum":
        # Only at-least-once dead-lettering survives a broker that goes down, and it needs this overflow mode.
        arguments += (("x-dead-letter-strategy", "at-least-once"), ("x-overflow", "reject-publish"))
    return QueueSpec(name=name, arguments=_durable_arguments(names) + arguments)


def work_queue_objects(names: Names, queue: WorkQueue) -> Topology:
    """Return the objects of one work queue: its binding to the return exchange, and its dead-letter queue."""
    dead_letters = names.dead_letters(queue.dead_letter_key)
    return Topology(
        queues=(QueueSpec(name=dead_letters, arguments=_durable_arguments(names)),),
        bindings=(
            BindingSpec(exchange=names.return_exchange(), queue=queue.name, routing_key=queue.name),
            BindingSpec(exchange=names.dead(), queue=dead_letters, routing_key=queue.dead_letter_key),
        ),
    )


def landing(names: Names, queue: WorkQueue) -> Topology:
    """Return the landing queue of a work queue. Without it a work queue could stop every rung of the ladder."""
    name = names.landing(queue)
    return Topology(
        queues=(wait_queue(names, name, delay_ms=LANDING_MS, then=names.return_exchange()),),
        bindings=(BindingSpec(exchange=names.landings(), queue=name, routing_key=queue.name),),
    )


def _durable_arguments(names: Names) -> tuple[Argument, ...]:
    """Return the arguments of a queue that loses no message."""
    if names.kind == "classic":
        return (("x-queue-type", "classic"),)  # explicit, because a virtual host may have another default
    return (("x-queue-type", "quorum"), ("x-delivery-limit", NO_DELIVERY_LIMIT))


def _limit(names: Names) -> tuple[Argument, ...]:
    """Return the arguments of a lane that refuses more than ``max_waiting`` messages (test_a_full_lane_refuses)."""
    if names.max_waiting is None:
        return ()
    refusing: tuple[Argument, ...] = () if names.kind == "quorum" else (("x-overflow", "reject-publish"),)
    return (*refusing, ("x-max-length", names.max_waiting))
