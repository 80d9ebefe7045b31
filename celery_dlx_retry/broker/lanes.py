"""Which lanes stand on the broker, and how those go that nobody needs any more."""

from __future__ import annotations

import time
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any

from amqp.exceptions import AccessRefused, AMQPError, PreconditionFailed

from celery_dlx_retry.broker.declare import declare
from celery_dlx_retry.broker.look import counts
from celery_dlx_retry.broker.reader import give_back
from celery_dlx_retry.core.topology import BindingSpec, ExchangeSpec, Topology
from celery_dlx_retry.errors import Forbidden

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from kombu.connection import Connection

    from celery_dlx_retry.broker.management import Management
    from celery_dlx_retry.core.topology import Lane, Names

# How long a message may be on its way from an exchange that is gone to the queue behind it.
SETTLE_SECONDS = 2.0

_HOLDS = "something waits in it"
_LOOKED_INTO = "somebody looks into it"
_USED_AGAIN = "in use again"


def standing_lanes(
    connection: Connection, names: Names, *, possible: Iterable[str], management: Management | None
) -> list[Lane]:
    """All lanes and rungs that exist, shortest first.

    AMQP has no list of queues: without the HTTP API each possible one is asked for by its name, a millisecond each,
    and the broker's log has a line for each that is not there.
    """
    there = management.queues() if management is not None else counts(connection, possible)
    found = (names.lane_of(name) for name in there)
    return sorted((lane for lane in found if lane), key=lambda it: (it.is_rung, it.delay_ms, it.kind))


def prune(connection: Connection, lanes: Iterable[Lane]) -> Iterator[tuple[Lane, str]]:
    """Delete those that nobody uses; yields each, with why it stays or an empty text.

    The exchange goes first, so that nothing new comes in: a publisher finds no route, and makes the lane again. Then
    we consume for a while. What was on its way arrives, and what somebody held and gave back: that lane stays. So
    does one whose exchange was made again, or that has another consumer: a message that is confirmed while its queue
    is being deleted would be lost (test_publishing_while_lanes_are_pruned_loses_nothing). The broker's own "if empty"
    would not do: quorum queues do not have it, and classic ones do not count what somebody holds
    (test_a_lane_that_is_looked_into_is_not_pruned).
    """
    watches: list[_Watch] = []
    begun: dict[str, Lane] = {}
    try:
        for lane in lanes:
            there = counts(connection, [lane.name]).get(lane.name)
            if there is None:
                continue  # somebody else did it
            if there.ready or there.consumers:
                yield lane, _HOLDS if there.ready else _LOOKED_INTO
            else:
                begun[lane.name] = lane
                watches.append(_Watch(connection, lane))
        deadline = time.monotonic() + SETTLE_SECONDS
        while watches and (left := deadline - time.monotonic()) > 0:
            with suppress(TimeoutError):
                connection.drain_events(timeout=left)
            for watch in [each for each in watches if each.arrived]:
                watches.remove(watch)
                watch.keep()
                del begun[watch.lane.name]
                yield watch.lane, _HOLDS
        for watch in watches:
            reason = watch.end()
            del begun[watch.lane.name]
            yield watch.lane, reason
    finally:
        if begun:  # Ctrl-C, perhaps in the middle of an answer
            connection.collect()
            with suppress(AMQPError, OSError), connection.clone() as fresh:
                for name in begun:
                    _make_whole(fresh, name)


def _make_whole(connection: Connection, name: str) -> None:
    """Give a lane back its exchange, however far we had come with it."""
    with closing(connection.channel()) as channel, suppress(PreconditionFailed):  # somebody has made it again
        channel.exchange_declare(name, "direct", durable=False, auto_delete=False)  # as a deletion leaves it
        channel.exchange_delete(name)
    if counts(connection, [name]):
        _join(connection, name)


def _join(connection: Connection, name: str) -> None:
    """The exchange of a lane whose queue stands."""
    exchange = ExchangeSpec(name=name, kind="fanout")
    declare(connection, Topology(exchanges=(exchange,), bindings=(BindingSpec(exchange=name, queue=name),)))


class _Watch:
    """A lane without its exchange, and a consumer that sees whether anything still turns up."""

    def __init__(self, connection: Connection, lane: Lane) -> None:
        self.lane = lane
        self.arrived: list[Any] = []
        self._connection = connection
        self._delete_exchange()
        self._channel = connection.channel()
        self._tag = self._channel.basic_consume(lane.name, callback=self.arrived.append, on_cancel=lambda _tag: None)

    def keep(self) -> None:
        self._give_back()
        self._restore()

    def end(self) -> str:
        """Delete the queue unless it is in use; why it stays, or an empty text."""
        others = counts(self._connection, [self.lane.name])[self.lane.name].consumers - 1
        self._give_back()
        reason = _LOOKED_INTO if others > 0 else _HOLDS if self.arrived else self._delete_queue()
        if reason:
            self._restore()
        else:
            self._channel.close()
        return reason

    def _give_back(self) -> None:
        self._channel.basic_cancel(self._tag)
        give_back(self._channel, [message.delivery_tag for message in self.arrived])

    def _restore(self) -> None:
        self._channel.close()
        _join(self._connection, self.lane.name)

    def _delete_queue(self) -> str:
        """Only if the exchange was away all the time: then nothing can be on its way.

        To look for it and then to delete the queue would leave a moment between the two. To declare it with another
        type fails if somebody has made it again; and as long as ours stands, nobody can.
        """
        name, is_classic = self.lane.name, self.lane.kind == "classic"
        try:
            self._channel.exchange_declare(name, "direct", durable=False, auto_delete=False)
        except PreconditionFailed:
            return _USED_AGAIN
        try:
            self._channel.queue_delete(name, if_unused=is_classic, if_empty=is_classic)
        except PreconditionFailed:
            return _USED_AGAIN
        finally:
            self._delete_exchange()
        return ""

    def _delete_exchange(self) -> None:
        with closing(self._connection.channel()) as channel:
            try:
                channel.exchange_delete(self.lane.name)
            except AccessRefused as exc:
                raise Forbidden(kind="exchange", name=self.lane.name, permission="configure") from exc
