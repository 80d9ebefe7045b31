"""What one Celery app needs of us, made once: settings, names, lanes, the publisher."""

from __future__ import annotations

import functools
import time
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from celery.exceptions import SoftTimeLimitExceeded
from celery.utils.log import get_logger

from celery_dlx_retry.app import (
    event_log,  # noqa: F401 - it subscribes
    short_waits,
)
from celery_dlx_retry.app.configuration import configured
from celery_dlx_retry.app.failure_pause import FailurePauses, Pace, place_of
from celery_dlx_retry.app.known_delays import announced_delays, validate_delays
from celery_dlx_retry.app.known_lanes import Lanes
from celery_dlx_retry.app.task_options import check_urls, choose_again, has_amqp, warn_elsewhere
from celery_dlx_retry.broker.declare import check, declare
from celery_dlx_retry.broker.lanes import MAKE_SECONDS, LaneRenewal, make_lanes, make_missing_lanes
from celery_dlx_retry.broker.sync_publisher import MessageCapture, Publisher, WaitingOutbox
from celery_dlx_retry.broker.work_queues import declare_if_missing, work_queue
from celery_dlx_retry.celery_compat import queues_by_tag
from celery_dlx_retry.errors import Forbidden, NotRabbitMQ
from celery_dlx_retry.settings import Settings
from celery_dlx_retry.topology.ladder import Ladder, rungs
from celery_dlx_retry.topology.names import Names, WorkQueue
from celery_dlx_retry.topology.objects import landing, shared_objects, work_queue_objects
from celery_dlx_retry.topology.specs import Topology
from celery_dlx_retry.topology.wait_route import LadderRoute, LaneRoute, WaitKind, choose, place, route
from celery_dlx_retry.topology.worker_objects import announced_lanes, possible_wait_queues, topology_without_lanes
from celery_dlx_retry.values.log_lines import escaped, log_fields
from celery_dlx_retry.wire.dead_record import with_record
from celery_dlx_retry.wire.headers import ORIGINAL, Failure, with_failure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from contextlib import AbstractContextManager

    from celery import Celery
    from kombu.connection import Connection
    from kombu.entity import Queue

    from celery_dlx_retry.broker.async_publisher import Pipeline
    from celery_dlx_retry.broker.sync_publisher import ConfirmedProducer
    from celery_dlx_retry.topology.wait_route import WaitRoute
    from celery_dlx_retry.wire.dead_record import DeadRecord
    from celery_dlx_retry.wire.message import Message

logger = escaped(get_logger(__name__))

_LONGEST_PAUSE_SECONDS = 10.0
_LONGEST_QUICK_PAUSE_SECONDS = 30.0
QUICK_MS = 2_000
_QUICK_LOCK_SECONDS = 4.0
_MEND_SECONDS = 10.0
_SETTLED_BY_FLAGS = (
    *("settings", "names", "ladder", "publisher", "quick_publisher", "leases"),
    *("lanes", "exact_lanes", "has_amqp", "is_rabbitmq", "is_sending_plain"),
)


def context_of(app: Celery) -> AppContext:
    """The app's own; made at first use, in every process that it is forked into the same."""
    context = app.__dict__.get("_dlx_runtime")
    if context is None:
        context = app.__dict__["_dlx_runtime"] = AppContext(app)
    return context  # type: ignore[no-any-return]


class AppContext:
    """Everything that is decided once per app."""

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._flags: dict[str, Any] = {}
        self._standing: set[str] = set()
        self._trusted: set[str] = set()
        #: How soon a delivery goes back to its queue, by the place that took no retry or dead letter of it.
        self.paces = FailurePauses(first=0.5, longest=_LONGEST_PAUSE_SECONDS)
        #: The main process tries something that failed only so often: its event loop stands still meanwhile.
        self.quick_pace = Pace(first=1.0, longest=_LONGEST_QUICK_PAUSE_SECONDS)
        self._has_ladder = False
        self._landings: set[str] = set()
        self._mended = -_MEND_SECONDS
        #: Which life of a worker this is. Name and pid tell not: a container that starts again has both again.
        self.start_id = ""
        #: The worker's consumer, in its main process.
        self.consumer: Any = None
        #: Retries that come with results go out here, in a main process whose event loop takes the results.
        self.pipeline: Pipeline | None = None
        self._queues_by_tag: dict[str, WorkQueue] = {}

    def use_flags(self, flags: Mapping[str, Any]) -> None:
        """Let a worker's command line overrule the configuration; before anything else is asked."""
        self._flags = dict(flags)
        for cached in _SETTLED_BY_FLAGS:
            self.__dict__.pop(cached, None)
        self._standing.clear()
        self._landings.clear()
        self._has_ladder = False

    def validate_delays(self) -> None:
        """Compute what forked children inherit, and find what is wrong with it before anything runs."""
        validate_delays(self._app, self.settings)
        self.exact_lanes  # noqa: B018 - computed and kept

    @cached_property
    def settings(self) -> Settings:
        """The app's dlx_* settings, checked."""
        return Settings.read(configured(self._app)).changed(self._flags)

    @cached_property
    def names(self) -> Names:
        """The names that they lead to."""
        return Names.of(self.settings)

    @cached_property
    def ladder(self) -> Ladder:
        """The ladder that they lead to."""
        return Ladder.of(self.settings)

    @cached_property
    def has_amqp(self) -> bool:
        """Whether there is a broker that we can wait in."""
        return has_amqp(self._app)

    @cached_property
    def is_rabbitmq(self) -> bool:
        """The same, for a worker, which warns if it is not so; the options of the tasks follow."""
        for task in self._app.tasks.values():
            choose_again(type(task), is_keeping=self.has_amqp)
        if self.has_amqp:
            return True
        transport = self._app.connection_for_write().transport
        if self.settings.require_rabbitmq:
            raise NotRabbitMQ(transport=transport.driver_type)
        warn_elsewhere(transport.driver_type)
        return False

    @cached_property
    def publisher(self) -> Publisher:
        """Connections of our own, in confirm mode."""
        timeout_ms = self.settings.confirm_timeout_ms
        return Publisher(self._connection, confirm_timeout_ms=timeout_ms, probe_at=self.names.lanes())

    @cached_property
    def quick_publisher(self) -> Publisher:
        """The same for the worker's main process, whose event loop stands still as long as a publish takes."""
        timeout_ms = min(self.settings.confirm_timeout_ms, QUICK_MS)
        return Publisher(self.connect_quickly, confirm_timeout_ms=timeout_ms, probe_at=self.names.lanes())

    def connect_quickly(self) -> Connection:
        """Return a connection that is given up after two seconds."""
        return self._connection(connect_timeout=QUICK_MS / 1000)

    def capture(self, queue: str = "") -> MessageCapture:
        """Return a producer for one message that the main process publishes. Threads do not share it."""
        return MessageCapture(self._unopened, queue)

    @cached_property
    def _unopened(self) -> Connection:
        """The connection that producers are made with which publish nothing."""
        return self._app.connection_for_write()

    @cached_property
    def is_sending_plain(self) -> bool:
        """Whether this process found at its first retry: protocol 2, a broker, no compression, no task-sent events."""
        conf = self._app.conf
        others = (conf.task_always_eager, conf.task_send_sent_event, conf.task_compression)
        return conf.task_protocol == 2 and not any(others)  # noqa: PLR2004 - its name

    @cached_property
    def leases(self) -> LaneRenewal:
        """Of lanes that expire."""
        return LaneRenewal(lease_ms=self.settings.lane_expires_ms - self.settings.lane_margin_ms)

    @cached_property
    def exact_lanes(self) -> frozenset[int]:
        """Every delay, in ms, that registered tasks are known to need."""
        return frozenset().union(*(delays for _, delays in announced_delays(self._app, self.settings))) - {0}

    @cached_property
    def lanes(self) -> Lanes:
        """What this process knows of lanes."""
        return Lanes(self.settings, self.names, announced=self.exact_lanes)

    def queue_of(self, message: Any) -> WorkQueue:
        """The queue that a delivery came from. AMQP tells the consumer's tag, and only Kombu knows whose it is."""
        info = message.delivery_info
        tag = info.get("consumer_tag")
        if tag not in self._queues_by_tag and self.consumer is not None and self.consumer.task_consumer:
            queues = queues_by_tag(self.consumer.task_consumer)
            self._queues_by_tag = {it: work_queue(queue) for it, queue in queues.items()}
        queue = self._queues_by_tag.get(tag)
        return queue or work_queue(self._app.amqp.queues[info.get("routing_key") or ""])

    def declare_topology(self, connection: Connection, queues: Iterable[Queue]) -> Topology:
        """Declare, or check, all that the consumed queues need; returns it."""
        queues = list(queues)
        lanes = self._announced_lanes(queues)
        self._declare_or_check(connection, self._without_lanes(queues))
        if self.settings.declare:
            make_missing_lanes(connection, self.names, lanes)
        else:
            self._declare_or_check(connection, lanes)
        self._standing.update(queue.name for queue in queues)
        self.lanes.saw_announced(map(work_queue, queues))
        return self.plan(queues)

    def declare(self, connection: Connection, queues: Iterable[Queue], *, ladder: bool) -> None:
        """Declare all of the plan for an operator: objects that exist are bound again."""
        queues = list(queues)
        declare(connection, self._without_lanes(queues, ladder=ladder))
        make_lanes(connection, self.names, self._announced_lanes(queues))

    def is_bound(self, queue: WorkQueue) -> bool:
        """Whether what waited comes back to this queue: this process has seen to it."""
        return queue.name in self._standing

    def mark_bound(self, queue: WorkQueue) -> None:
        """The main process has: an exclusive queue can be bound over the connection alone that it belongs to."""
        self._standing.add(queue.name)
        self._trusted.add(queue.name)

    def plan(self, queues: Iterable[Queue], *, ladder: bool = False) -> Topology:
        """All that must stand for a worker that consumes these queues; the ladder only needs to for countdowns."""
        queues = list(queues)
        return self._without_lanes(queues, ladder=ladder) | self._announced_lanes(queues)

    def wait_queues(self, queues: Iterable[WorkQueue]) -> set[str]:
        """Return the names of all wait queues that the app may have made for these work queues."""
        return possible_wait_queues(self.names, self.settings, queues, self.exact_lanes)

    def _without_lanes(self, queues: Iterable[Queue], *, ladder: bool = False) -> Topology:
        return topology_without_lanes(self.names, map(work_queue, queues), ladder=self.ladder if ladder else None)

    def _announced_lanes(self, queues: Iterable[Queue]) -> Topology:
        return announced_lanes(self.names, map(work_queue, queues), self.exact_lanes)

    def ensure_work_queue(self, queue: Queue) -> WorkQueue:
        """A queue that somebody asked for and that this worker may not consume: made as Celery would make it."""
        if self.settings.declare and queue.name not in self._standing:
            with self.publisher.connection() as connection:
                declare_if_missing(connection, queue)
        return work_queue(queue)

    def wait_route(self, queue: WorkQueue, delay_ms: int, *, wish: WaitKind, quickly: bool = False) -> WaitRoute:
        """Return how a message of this queue waits so long; make what leads back to the queue, and the ladder.

        The lane may be missing: a publish to it finds no route, and hand_over() makes it. On a ladder without its
        lowest rungs a message would come back early, and no error would show it. So each process makes all rungs first.
        """
        # A lane that may be full is for retries, which have a budget; an appointment would be refused for nothing.
        has_room = wish is WaitKind.RETRY or self.settings.max_waiting is None
        choose_for = functools.partial(
            choose,
            wish=wish,
            announced=self.exact_lanes if has_room else frozenset(),
            grid=self.settings.grid,
            limit_ms=self.settings.max_delay_ms,
            ladder=self.ladder,
        )
        choice = choose_for(delay_ms)
        is_short = wish is WaitKind.RETRY and short_waits.are_on()
        if is_short:
            choice = choose_for(0)
        if isinstance(choice, LaneRoute):
            choice = LaneRoute(self.lanes.answering_ms(queue, choice.length_ms))
        self._ensure(queue, ladder=isinstance(choice, LadderRoute), quickly=quickly)
        expires_ms = self._lane_expires_ms(choice)
        there = route(choice, self.names, queue, ladder=self.ladder, lane_expires_ms=expires_ms)
        if expires_ms and there.lane is not None:
            self.leases.renew(self.quick_publisher if quickly else self.publisher, self.names, there.lane)
        length_ms = delay_ms if is_short else there.length_ms
        return replace(there, length_ms=length_ms, needs=self._around(queue) | there.needs)

    def mend_ladder(self) -> None:
        """Declare, or check, all rungs again: one is known to be gone. Once for all messages that come at once."""
        if time.monotonic() - self._mended < _MEND_SECONDS:
            return
        self._mended = time.monotonic()
        with self.quick_publisher.connection() as connection:
            self._declare_or_check(connection, rungs(self.names, self.ladder))

    def producer_for(
        self, there: WaitRoute, *, queue: str = "", quickly: bool = False
    ) -> AbstractContextManager[ConfirmedProducer]:
        """A producer for one message on its way; what it needs is declared if it is missing, and if we may."""
        publisher = self.quick_publisher if quickly else self.publisher
        return publisher.producer(mend=self._mend(there, quickly=quickly), headers=there.headers, queue=queue)

    def _mend(self, there: WaitRoute, *, quickly: bool) -> Callable[[Connection], None] | None:
        def mend(connection: Connection) -> None:
            declare(connection, there.needs)
            self.lanes.make_now(connection, there, within=_QUICK_LOCK_SECONDS if quickly else MAKE_SECONDS)

        return mend if self.settings.declare else None

    def outbox_for(self, there: WaitRoute, *, quickly: bool = False) -> WaitingOutbox:
        """Return an outbox for one message on its way, which waits for the confirm; it mends what is missing, too."""
        publisher = self.quick_publisher if quickly else self.publisher
        return WaitingOutbox(publisher, mend=self._mend(there, quickly=quickly), headers=there.headers)

    def publish_dead(self, message: Message, queue: WorkQueue, record: DeadRecord, *, quickly: bool = False) -> None:
        """Make a message a dead letter: returns when the broker has it, raises PublishError if it does not."""
        failure = Failure(
            attempt=record.attempts,
            at_ms=record.died_at_ms,
            error=f"{record.error_type}: {record.error}" if record.error_type else str(record.reason),
            delay_ms=None,
            worker=record.worker,
        )
        headers = with_record(with_failure(message.headers, failure), record)
        headers.pop(ORIGINAL, None)  # an operator edits dead letters only, so this one is the sender's
        letter = message.with_headers(headers)
        publisher = self.quick_publisher if quickly else self.publisher

        def mend(connection: Connection) -> None:
            declare(connection, self._around(queue))

        exchange = self.names.dead()
        with publisher.producer(mend=mend if self.settings.declare else None) as producer:
            producer.publish_message(letter, exchange=exchange, routing_key=queue.dead_letter_key)
        if self.paces.by_place:
            self.paces.reached(place(exchange, queue.dead_letter_key))

    def published(self, there: WaitRoute) -> None:
        """The place took a message: the next failure there pauses briefly again."""
        self.paces.reached(there.place)
        self.lanes.saw(there)

    def pause(self, problem: BaseException) -> None:
        """Wait before a delivery goes back to its queue, in a pool process."""
        seconds = self.paces.failed(place_of(problem))
        with suppress(SoftTimeLimitExceeded):  # time is up: go back at once
            time.sleep(seconds)  # noqa: TID251 - the pace of a delivery that nothing else holds back

    def _around(self, queue: WorkQueue) -> Topology:
        """All that a message of this queue may need besides its lane, as far as it is ours to make."""
        needs = shared_objects(self.names) | work_queue_objects(self.names, queue)
        if queue.name not in self._trusted:
            return needs
        return replace(needs, bindings=tuple(it for it in needs.bindings if it.queue != queue.name))

    def _ensure(self, queue: WorkQueue, *, ladder: bool, quickly: bool) -> None:
        """A lane that stands takes any message; without a binding for its queue it would come back as an orphan.

        The bootstep binds what the worker consumes, but pool children were forked before it, queues are added to a
        running worker, and who sends may be no worker at all: so each process looks once per queue, and per ladder.
        """
        missing = Topology()
        if queue.name not in self._standing:
            missing = self._around(queue)
        if ladder and not self._has_ladder:
            missing |= rungs(self.names, self.ladder)
        if ladder and queue.name not in self._landings:
            missing |= landing(self.names, queue)
        if missing != Topology():
            with (self.quick_publisher if quickly else self.publisher).connection() as connection:
                self._declare_or_check(connection, missing)
        self._has_ladder |= ladder
        if ladder:
            self._landings.add(queue.name)
        self._standing.add(queue.name)

    def _lane_expires_ms(self, choice: LaneRoute | LadderRoute) -> int:
        """Announced lanes stay, and so do quorum lanes, and what we may not declare again."""
        if self.names.kind == "quorum" or isinstance(choice, LadderRoute) or choice.length_ms in self.exact_lanes:
            return 0
        return self.settings.lane_expires_ms if self.settings.declare else 0

    def _declare_or_check(self, connection: Connection, topology: Topology) -> None:
        if self.settings.declare:
            declare(connection, topology)
            return
        try:
            check(connection, topology)
        except Forbidden as exc:
            # RabbitMQ 4 shows an object only to users with a permission on it. If it is missing, the first retry fails.
            logger.warning(
                "topology not checked: the broker user may not look at the %s %r",
                exc.kind, exc.name, extra=log_fields("TopologyNotChecked", kind=exc.kind, name=exc.name),
            )  # fmt: skip

    def _connection(self, **options: Any) -> Connection:
        """To the broker; of several, all have their turn, while "shuffle" may try one twice and another never."""
        check_urls(self._app)
        return self._app.connection_for_write(failover_strategy="round-robin", **options)
