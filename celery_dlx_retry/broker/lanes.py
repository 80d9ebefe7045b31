"""Lanes on the broker: find them, make them, and delete those that are no longer used.

Only this module binds a lane, and only while it holds the lock around lanes.
"""

from __future__ import annotations

import time
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING

from amqp.exceptions import AccessRefused, AMQPError, NotFound, ResourceLocked

from celery_dlx_retry.broker.counts import counts
from celery_dlx_retry.broker.declare import SETTLE_SECONDS, bind, declare_queues, exists, require_answers
from celery_dlx_retry.errors import DLXError, Forbidden, LanesBusy, Missing
from celery_dlx_retry.topology.specs import BindingSpec, Topology

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from kombu.connection import Connection

    from celery_dlx_retry.broker.management import Management
    from celery_dlx_retry.broker.sync_publisher import Publisher
    from celery_dlx_retry.topology.names import Lane, Names


_LOCK_POLL_SECONDS = 0.1
_ANSWER_SECONDS = 5.0
# If the machine of the owner vanishes, RabbitMQ notices only by missing heartbeats.
_HEARTBEAT_SECONDS = 60

# Another process holds the lock for milliseconds; how soon to look again, and how long to try.
BUSY_SECONDS = 0.1
MAKE_SECONDS = 30.0

# Each queue counts every five seconds, and the HTTP API asks for the counts every five seconds.
COUNT_SECONDS = 12.0
# It keeps an answer for five times as long as it took, and gives it again: "management.db_cache_multiplier".
_CACHED_TIMES = 5
_LOCK_SECONDS = 30.0

_HOLDS = "something waits in it"
_LOOKED_INTO = "a process reads it"
_USED_AGAIN = "in use again"


# RabbitMQ cannot delete a quorum queue only if it is empty. So `prune` unbinds a lane first, and deletes it when
# nothing is left in it. If another process bound the lane in between, a message could be confirmed and then be deleted
# with the queue (test_workers_and_prune_in_a_loop_lose_nothing). The lock is an exclusive queue. It holds no message,
# and RabbitMQ deletes it with the connection of its owner, also when the owner is killed.


class LaneLock:
    """Holds the lock from its creation until ``release()``; raises LanesBusy if another process holds it."""

    def __init__(self, connection: Connection, names: Names) -> None:
        # An own connection: closing it releases the lock, whatever went wrong before.
        self._connection = connection.clone(heartbeat=_HEARTBEAT_SECONDS)
        try:
            self._connection.connect()
            self._connection.connection.transport.sock.settimeout(_ANSWER_SECONDS)
            self._connection.default_channel.queue_declare(names.lock(), exclusive=True, auto_delete=False)
        except BaseException as exc:
            self.release()
            if isinstance(exc, ResourceLocked):
                raise LanesBusy(prefix=names.prefix) from exc
            if isinstance(exc, AccessRefused):
                raise Forbidden(kind="queue", name=names.lock(), permission="configure") from exc
            raise

    def release(self) -> None:
        """Let the next process have it.

        RabbitMQ deletes the queue before it confirms the close. A bare end of the TCP connection may reach it late, for
        instance through a proxy.
        """
        with suppress(AMQPError, OSError):
            self._connection.release()
        self._connection.collect()


@contextmanager
def lane_lock(connection: Connection, names: Names, *, within: float) -> Iterator[None]:
    """Hold the lock; wait that many seconds for it, then raise LanesBusy."""
    deadline = time.monotonic() + within
    while True:
        try:
            lock = LaneLock(connection, names)
            break
        except LanesBusy:
            if time.monotonic() > deadline:
                raise
            time.sleep(_LOCK_POLL_SECONDS)  # noqa: TID251 - the broker does not say when a lock is free
    try:
        yield
    finally:
        lock.release()


def existing_lanes(
    connection: Connection, names: Names, *, possible: Iterable[str], management: Management | None
) -> list[Lane]:
    """Return all lanes and rungs that exist, shortest first.

    AMQP has no list of queues. Without the HTTP API this asks for each possible name, a millisecond each, and the
    broker writes a log line for each that does not exist.
    """
    queues = management.queues() if management is not None else counts(connection, possible)
    lanes = (names.lane_of(name) for name in queues)
    return sorted((it for it in lanes if it), key=lambda it: (it.is_rung, it.delay_ms, it.queue, it.kind))


def make_missing_lanes(connection: Connection, names: Names, lanes: Topology) -> None:
    """Make those of these lanes whose queues or exchanges do not exist; check the arguments of the others.

    A queue that exists may still be unbound: a process may have died while it made the lane, or `prune` is about to
    delete it. The first message for it finds no route then, and make_lanes() binds it. A missing exchange is worse: the
    first message for it closes its channel, and the result of every publish beside it is unknown then.
    """
    missing = {it.name for it in lanes.queues if not exists(connection, Topology(queues=(it,)))}
    missing_exchanges = {it.name for it in lanes.exchanges if not exists(connection, Topology(exchanges=(it,)))}
    missing |= {it.queue for it in lanes.bindings if it.exchange in missing_exchanges}
    declare_queues(connection, Topology(queues=tuple(it for it in lanes.queues if it.name not in missing)))
    if missing:
        make_lanes(connection, names, _only(lanes, missing))


def make_lanes(connection: Connection, names: Names, lanes: Topology, *, within: float = MAKE_SECONDS) -> None:
    """Declare and bind these lanes, also if they exist; wait for them, and that many seconds for the lock."""
    creation = LaneCreation(connection, names, lanes)
    deadline = time.monotonic() + within
    while True:
        try:
            if not (pause := creation.advance(connection)):
                return
        except LanesBusy:
            if time.monotonic() > deadline:
                raise
            pause = BUSY_SECONDS
        time.sleep(pause)  # noqa: TID251 - the broker does not say when a queue has settled, or a lock is free


class LaneCreation:
    """Makes lanes in steps, for an event loop that must not wait: call ``advance()`` until it returns 0.

    A quorum queue gets time to settle before it is bound: see SETTLE_SECONDS. The age of a queue that exists is not
    known, so it gets the same time. `prune` may delete a queue that is not bound yet: it is declared again then.
    """

    def __init__(self, connection: Connection, names: Names, lanes: Topology) -> None:
        self._names, self._lanes, self._not_before = names, lanes, 0.0
        self._declare(connection)

    def advance(self, connection: Connection) -> float:
        """Bind the lanes if it is time; return 0 if they are made, else after how many seconds to call this again.

        Raise LanesBusy if another process holds the lock just now, NoAnswer if a queue does not answer.
        """
        if left := max(0.0, self._not_before - time.monotonic()):
            return left
        if self._is_whole(connection):
            # A queue whose broker crashed while it was young may exist and never answer: nothing may be sent to it.
            require_answers(connection, [it.name for it in self._lanes.queues if it.is_quorum])
            try:
                lock = LaneLock(connection, self._names)
            except LanesBusy:
                # Many retries may wait for one lane: they do not all ask again at once.
                self._not_before = time.monotonic() + BUSY_SECONDS
                raise
            try:
                if self._is_whole(connection):
                    bind(connection, self._lanes)
                    return 0.0
            finally:
                lock.release()
        self._declare(connection)
        return max(BUSY_SECONDS, self._not_before - time.monotonic())

    def _is_whole(self, connection: Connection) -> bool:
        return exists(connection, Topology(queues=self._lanes.queues))

    def _declare(self, connection: Connection) -> None:
        declare_queues(connection, self._lanes)
        is_quorum = any(it.is_quorum for it in self._lanes.queues)
        self._not_before = time.monotonic() + (SETTLE_SECONDS if is_quorum else 0.0)


def _only(lanes: Topology, names: set[str]) -> Topology:
    bindings = tuple(it for it in lanes.bindings if it.queue in names)
    used = {it.exchange for it in bindings}
    return Topology(
        exchanges=tuple(it for it in lanes.exchanges if it.name in used),
        queues=tuple(it for it in lanes.queues if it.name in names),
        bindings=bindings,
    )


# RabbitMQ deletes a queue with its messages if it was not used for x-expires. A declare counts as use, a publish does
# not (test_the_naive_recipe_loses_what_is_in_the_lane). So before each publish
#
#     age of our last declare + TTL + margin < x-expires
#
# must hold. x-expires is the TTL plus ``expires_ms``, which gives: age < expires_ms - margin. Only classic lanes
# expire: a publisher cannot renew a quorum queue.


class LaneRenewal:
    """Remembers when this process last declared each lane. Every process does this for itself."""

    def __init__(self, *, lease_ms: int) -> None:
        self._lease_seconds = lease_ms / 1000
        self._declared_at: dict[str, float] = {}

    def renew(self, publisher: Publisher, names: Names, lane: Topology) -> None:
        """Declare this lane, unless its last declare is recent."""
        (queue,) = lane.queues
        now = time.monotonic()  # before the declare, so that the real lease is never shorter than ours
        if now - self._declared_at.get(queue.name, -self._lease_seconds) < self._lease_seconds:
            return
        with publisher.connection() as connection:
            make_missing_lanes(connection, names, lane)
        self._declared_at[queue.name] = now


# A lane that RabbitMQ calls empty may still hold messages: expired ones that their work queue did not take yet. AMQP
# does not show them and no consumer gets them; only the HTTP API counts them
# (test_a_lane_whose_work_queue_is_full_is_not_pruned). So prune needs the HTTP API, and waits until its counts are
# newer than the moment at which the lane was unbound.


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
        # A queue without an answering leader has no counts at all.
        lane: _LOOKED_INTO if (it := queues[lane.name]).get("consumers") else "" if it.get("messages") == 0 else _HOLDS
        for lane in lanes
        if lane.name in queues
    }


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
