"""Which lanes stand on the broker, and how those go that nobody needs any more."""

from __future__ import annotations

import time
from contextlib import closing
from typing import TYPE_CHECKING

from amqp.exceptions import AccessRefused, NotFound, PreconditionFailed

from celery_dlx_retry.broker.declare import declare
from celery_dlx_retry.broker.look import counts
from celery_dlx_retry.core.topology import Lane, lane
from celery_dlx_retry.errors import Forbidden

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from kombu.connection import Connection

    from celery_dlx_retry.broker.management import Management
    from celery_dlx_retry.core.settings import QueueType
    from celery_dlx_retry.core.topology import Names

# How long a message may be on its way from an exchange that is gone to the queue behind it.
SETTLE_SECONDS = 2.0


def standing_lanes(
    connection: Connection,
    names: Names,
    *,
    kinds: Iterable[QueueType],
    delays_ms: Iterable[int],
    management: Management | None,
) -> list[Lane]:
    """All lanes that exist, shortest first.

    AMQP has no list of queues: without the HTTP API each possible one is asked for by its name, a millisecond each,
    and the broker's log has a line for each that is not there.
    """
    if management is not None:
        found = [it for name in management.queues() if (it := names.lane_of(name))]
    else:
        possible = {
            names.lane(kind, delay_ms): Lane(name=names.lane(kind, delay_ms), kind=kind, delay_ms=delay_ms)
            for kind in kinds
            for delay_ms in delays_ms
        }
        found = [possible[name] for name in counts(connection, possible)]
    return sorted(found, key=lambda it: (it.delay_ms, it.kind))


def prune(connection: Connection, names: Names, lanes: Iterable[Lane]) -> Iterator[tuple[Lane, str]]:
    """Delete those that are empty and that nobody looks into; yields each, with why it stays or an empty text.

    The exchange goes first, so that nothing new comes in: a publisher finds no route, and makes the lane again. A
    message that was routed before has time to arrive. Then whoever made the exchange again keeps the lane, and so
    does a message that came, or a consumer (test_publishing_while_lanes_are_pruned_loses_nothing). The broker's own
    "if empty" would not do: quorum queues do not have it, and classic ones do not count what somebody holds.
    """
    lanes = list(lanes)
    closing_down = []
    for each in lanes:
        if reason := _in_use(connection, each):
            yield each, reason
        else:
            _delete_exchange(connection, each)
            closing_down.append(each)
    if closing_down:
        time.sleep(SETTLE_SECONDS)  # noqa: TID251 - nothing to poll: what is under way shows nowhere
    for each in closing_down:
        if _has_exchange(connection, each):
            yield each, "in use again"
            continue
        _delete_exchange(connection, each)
        reason = _in_use(connection, each) or _delete_queue(connection, each)
        if reason:
            declare(connection, lane(names, each.kind, each.delay_ms))
        yield each, reason


def _in_use(connection: Connection, it: Lane) -> str:
    found = counts(connection, [it.name]).get(it.name)
    if found is None:
        return ""
    if found.ready:
        return f"holds {found.ready} messages"
    return "somebody looks into it" if found.consumers else ""


def _has_exchange(connection: Connection, it: Lane) -> bool:
    with closing(connection.channel()) as channel:
        try:
            channel.exchange_declare(it.name, "fanout", passive=True)
        except NotFound:
            return False
    return True


def _delete_exchange(connection: Connection, it: Lane) -> None:
    with closing(connection.channel()) as channel:
        try:
            channel.exchange_delete(it.name)
        except AccessRefused as exc:
            raise Forbidden(kind="exchange", name=it.name, permission="configure") from exc


def _delete_queue(connection: Connection, it: Lane) -> str:
    is_classic = it.kind == "classic"
    with closing(connection.channel()) as channel:
        try:
            channel.queue_delete(it.name, if_unused=is_classic, if_empty=is_classic)
        except PreconditionFailed:
            return "in use again"
    return ""
