"""What one Celery app needs of us, made once: settings, names, lanes, the publisher."""

from __future__ import annotations

import time
import warnings
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any

from celery.exceptions import SoftTimeLimitExceeded
from celery.utils.log import get_logger

from celery_dlx_retry.broker.declare import check, declare
from celery_dlx_retry.broker.publish import Publisher
from celery_dlx_retry.broker.queues import declared_kind, found_kind, make_sure, work_queue
from celery_dlx_retry.core.backoff import Exponential
from celery_dlx_retry.core.headers import Failure, with_failure, with_record
from celery_dlx_retry.core.lanes import lane_ms
from celery_dlx_retry.core.settings import Settings
from celery_dlx_retry.core.topology import Names, Topology, WorkQueue, around, foundation, lane
from celery_dlx_retry.errors import Forbidden, NotRabbitMQ

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from contextlib import AbstractContextManager

    from celery import Celery
    from kombu.connection import Connection
    from kombu.entity import Queue

    from celery_dlx_retry.broker.publish import ConfirmedProducer
    from celery_dlx_retry.core.headers import DeadRecord
    from celery_dlx_retry.core.message import Message
    from celery_dlx_retry.core.settings import QueueType

logger = get_logger(__name__)

_LONGEST_PAUSE_SECONDS = 10.0
_QUICK_MS = 2_000

# What took its pool process down comes back later each time; how often is dlx_crash_limit.
AFTER_A_CRASH = Exponential(1, factor=10, limit=100, retries=None)


def runtime_of(app: Celery) -> Runtime:
    """The app's own; made at first use, in every process that it is forked into the same."""
    runtime = app.__dict__.get("_dlx_runtime")
    if runtime is None:
        runtime = app.__dict__["_dlx_runtime"] = Runtime(app)
    return runtime  # type: ignore[no-any-return]


class Runtime:
    """Everything that is decided once per app."""

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._flags: dict[str, Any] = {}
        self._kinds: dict[str, QueueType] = {}
        self._failures_in_a_row = 0
        self._standing: set[str] = set()
        #: The worker's consumer, in its main process.
        self.consumer: Any = None
        self._queues_by_tag: dict[str, Queue] = {}

    def use_flags(self, flags: Mapping[str, Any]) -> None:
        """Let a worker's command line overrule the configuration; before anything else is asked."""
        self._flags = dict(flags)
        for cached in ("settings", "names", "publisher", "quick_publisher", "exact_lanes", "is_rabbitmq"):
            self.__dict__.pop(cached, None)
        self._standing.clear()

    def foresee(self) -> None:
        """Compute what forked children inherit, and find what is wrong with it before anything runs."""
        for delay_ms in self.exact_lanes:
            self._lane_ms(delay_ms)

    @cached_property
    def settings(self) -> Settings:
        """The app's dlx_* settings, checked."""
        return Settings.read(dict(_configured(self._app))).changed(self._flags)

    @cached_property
    def names(self) -> Names:
        """The names that they lead to."""
        return Names.of(self.settings)

    @cached_property
    def is_rabbitmq(self) -> bool:
        """Whether there is a broker that we can wait in; if not, Celery's own retries are used, and said to be."""
        transport = self._app.connection_for_write().transport
        if transport.driver_type == "amqp" and transport.driver_name == "py-amqp":
            return True
        if self.settings.require_rabbitmq:
            raise NotRabbitMQ(transport=transport.driver_type)
        warnings.warn(
            f"DLXRetryTask needs RabbitMQ; the broker transport is {transport.driver_type!r}, so Celery's own retries "
            "are used, which wait in the worker's memory. Set dlx_require_rabbitmq = True to make this an error.",
            stacklevel=2,
        )
        return False

    @cached_property
    def publisher(self) -> Publisher:
        """Connections of our own, in confirm mode."""
        return Publisher(self._app.connection_for_write, confirm_timeout_ms=self.settings.confirm_timeout_ms)

    @cached_property
    def quick_publisher(self) -> Publisher:
        """The same for the worker's main process, whose event loop stands still as long as a publish takes."""
        return Publisher(
            lambda: self._app.connection_for_write(connect_timeout=_QUICK_MS / 1000),
            confirm_timeout_ms=min(self.settings.confirm_timeout_ms, _QUICK_MS),
        )

    @cached_property
    def exact_lanes(self) -> frozenset[int]:
        """Every delay, in ms, that registered tasks are known to need."""
        delays: set[int] = set()
        for task in self._app.tasks.values():
            delays |= getattr(task, "known_delays_ms", frozenset)()
        return frozenset(delays - {0}) | AFTER_A_CRASH.known_delays_ms()

    def work_queue(self, queue: Queue) -> WorkQueue:
        """A Kombu queue as we know it, with the type that it really has as far as anybody said."""
        if self.settings.queue_type != "auto":
            return work_queue(queue, kind=self.settings.queue_type)
        return work_queue(queue, kind=declared_kind(queue) or self._kinds.get(queue.name, "classic"))

    def queue_of(self, message: Any) -> WorkQueue:
        """The queue that a delivery came from. AMQP tells the consumer's tag, and only Kombu knows whose it is."""
        info = message.delivery_info
        tag = info.get("consumer_tag")
        if tag not in self._queues_by_tag and self.consumer is not None and self.consumer.task_consumer:
            consumer = self.consumer.task_consumer
            tags = consumer._active_tags  # noqa: SLF001 - nothing public tells
            self._queues_by_tag = {tags[queue.name]: queue for queue in consumer.queues if queue.name in tags}
        queue = self._queues_by_tag.get(tag)
        return self.work_queue(queue if queue is not None else self._app.amqp.queues[info.get("routing_key") or ""])

    def stand(self, connection: Connection, queues: Iterable[Queue]) -> Topology:
        """Declare, or check, all that the consumed queues need; returns it."""
        queues = list(queues)
        if self.settings.declare:
            self.learn_kinds(connection, queues)
        topology = self.plan(queues)
        if self.settings.declare:
            declare(connection, topology)
        else:
            self._check(connection, topology)
        self._standing.update(queue.name for queue in queues)
        return topology

    def learn_kinds(self, connection: Connection, queues: Iterable[Queue]) -> None:
        """Ask the broker for the types that nobody named; it takes the configure permission."""
        if self.settings.queue_type == "auto":
            for queue in queues:
                self._kinds[queue.name] = declared_kind(queue) or found_kind(connection, queue)

    def plan(self, queues: Iterable[Queue]) -> Topology:
        """All that must stand for a worker that consumes these queues."""
        work_queues = [self.work_queue(queue) for queue in queues]
        kinds = sorted({queue.kind for queue in work_queues})
        topology = foundation(self.names, kinds)
        for queue in work_queues:
            topology |= around(self.names, queue)
        for kind in kinds:
            for delay_ms in sorted(self.exact_lanes):
                topology |= lane(self.names, kind, delay_ms)
        return topology

    def adopt(self, queue: Queue) -> WorkQueue:
        """A queue that somebody asked for and that this worker may not consume: made as Celery would make it."""
        if self.settings.declare and queue.name not in self._standing:
            with self.publisher.connection() as connection:
                make_sure(connection, queue)
                self._kinds[queue.name] = declared_kind(queue) or found_kind(connection, queue)
        return self.work_queue(queue)

    def lane_for(self, queue: WorkQueue, delay_ms: int, *, quickly: bool = False) -> tuple[int, str, Topology]:
        """How long the wait will be, the exchange that leads to it, and what must stand for it."""
        self._ensure_way_back(queue, quickly=quickly)
        length = self._lane_ms(delay_ms)
        needs = foundation(self.names, [queue.kind]) | around(self.names, queue) | lane(self.names, queue.kind, length)
        return length, self.names.lane(queue.kind, length), needs

    def hand_over(self, needs: Topology, *, quickly: bool = False) -> AbstractContextManager[ConfirmedProducer]:
        """A producer for one message; what it needs is declared if it is missing, and if we may."""
        publisher = self.quick_publisher if quickly else self.publisher
        return publisher.producer(needs=needs if self.settings.declare else None)

    def publish_dead(self, message: Message, queue: WorkQueue, record: DeadRecord, *, quickly: bool = False) -> None:
        """Make a message a dead letter: returns when the broker has it, raises PublishError if it does not."""
        failure = Failure(
            attempt=record.attempts,
            at_ms=record.died_at_ms,
            error=f"{record.error_type}: {record.error}" if record.error_type else str(record.reason),
            delay_ms=None,
            worker=record.worker,
        )
        letter = message.with_headers(with_record(with_failure(message.headers, failure), record))
        needs = foundation(self.names, [queue.kind]) | around(self.names, queue)
        with self.hand_over(needs, quickly=quickly) as producer:
            producer.publish_message(letter, exchange=self.names.dead(), routing_key=queue.family)

    def published(self) -> None:
        """All is well: the next failure pauses briefly again."""
        self._failures_in_a_row = 0

    def next_pause_seconds(self) -> float:
        """How long a delivery waits before it goes back to its queue, longer each time, so that it is no hot loop."""
        self._failures_in_a_row += 1
        return min(_LONGEST_PAUSE_SECONDS, 0.25 * float(2 ** min(self._failures_in_a_row, 10)))

    def pause(self) -> None:
        """Wait that long, in a pool process."""
        seconds = self.next_pause_seconds()
        with suppress(SoftTimeLimitExceeded):  # time is up: go back at once
            time.sleep(seconds)  # noqa: TID251 - the pace of a delivery that nothing else holds back

    def _check(self, connection: Connection, topology: Topology) -> None:
        try:
            check(connection, topology)
        except Forbidden as exc:
            # RabbitMQ 4 shows an object only to users with some permission on it. Every publish of ours is mandatory
            # and confirmed, so what is missing shows at the first retry, and its task stays on its queue.
            logger.warning("topology not checked: the broker user may not look at the %s %r", exc.kind, exc.name)

    def _ensure_way_back(self, queue: WorkQueue, *, quickly: bool) -> None:
        """A lane that stands takes any message; without a binding for its queue it would come back as an orphan.

        The bootstep binds what the worker consumes, but pool children were forked before it, and queues are added to
        a running worker: so each process looks once per queue.
        """
        if self.settings.declare and queue.name not in self._standing:
            with (self.quick_publisher if quickly else self.publisher).connection() as connection:
                declare(connection, foundation(self.names, [queue.kind]) | around(self.names, queue))
        self._standing.add(queue.name)
        self._kinds[queue.name] = queue.kind

    def _lane_ms(self, delay_ms: int) -> int:
        return lane_ms(delay_ms, exact=self.exact_lanes, ratio=self.settings.grid, limit_ms=self.settings.max_delay_ms)


def _configured(app: Celery) -> Iterator[tuple[str, Any]]:
    """All dlx_* keys of an app's configuration, misspelt ones too; ``CELERY_DLX_*`` under that namespace."""
    namespace = f"{app.namespace.removesuffix('_')}_".lower() if app.namespace else ""
    for key in app.conf:
        name = key.lower().removeprefix(namespace) if namespace else key
        if name.startswith("dlx_"):
            yield name, app.conf[key]
