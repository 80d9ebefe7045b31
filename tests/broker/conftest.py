"""Hands on the broker: put messages in, look, take them out."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from amqp.exceptions import NotFound
from kombu.connection import Connection
from support import eventually, put

from celery_dlx_retry.broker import declare as declare_module
from celery_dlx_retry.broker import lanes as lanes_module
from celery_dlx_retry.broker.declare import declare
from celery_dlx_retry.broker.sync_publisher import Publisher
from celery_dlx_retry.errors import Unconfirmed
from celery_dlx_retry.settings import Settings
from celery_dlx_retry.topology.ladder import Ladder, rungs
from celery_dlx_retry.topology.names import Names, WorkQueue
from celery_dlx_retry.topology.objects import landing, shared_objects, work_queue_objects
from celery_dlx_retry.topology.specs import Topology
from celery_dlx_retry.topology.wait_route import LaneRoute, route

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from celery_dlx_retry.settings import QueueType
    from celery_dlx_retry.topology.wait_route import WaitRoute


class Bench:
    """One test's names, connections and queues."""

    def __init__(self, *, url: str, prefix: str, stack: ExitStack) -> None:
        self.url, self.prefix, self._stack = url, prefix, stack
        self.use("classic")
        self.connection = self.connect()

    def use(self, kind: QueueType) -> None:
        """Have lanes and dead-letter queues of this type from now on; the fixture ``kind`` does it for both."""
        self.names = Names(prefix=self.prefix, kind=kind)

    def connect(self, **options: Any) -> Connection:
        connection = Connection(options.pop("url", self.url), **options)
        # Not release(): it waits for an answer, and a test may have left the broker paused.
        self._stack.callback(connection.collect)
        return connection

    def publisher(self, *, timeout_ms: int = 10_000, **options: Any) -> Publisher:
        url = options.pop("url", self.url)
        publisher = Publisher(lambda: Connection(url, **options), confirm_timeout_ms=timeout_ms)
        self._stack.callback(publisher.close)
        return publisher

    def queue(self, name: str = "work", kind: QueueType = "classic", **arguments: Any) -> str:
        """Declare a queue as any application would; ``x_max_length=1`` is x-max-length."""
        dashed = {key.replace("_", "-"): value for key, value in arguments.items()}
        full = f"{self.prefix}.{name}"
        with self.connect() as connection:
            connection.default_channel.queue_declare(
                full, durable=True, auto_delete=False, arguments={"x-queue-type": kind, **dashed}
            )
        return full

    def work(self, kind: QueueType = "classic", name: str = "work") -> WorkQueue:
        """A work queue with all that it needs around it."""
        queue = WorkQueue(name=self.queue(name, kind))
        self.declare_topology(shared_objects(self.names) | work_queue_objects(self.names, queue))
        return queue

    def declare_topology(self, topology: Topology) -> None:
        declare(self.connection, topology)

    def lane(self, work: WorkQueue, delay_ms: int, *, expires_ms: int = 0, names: Names | None = None) -> WaitRoute:
        """Make the lane of a work queue; return how to publish to it."""
        names = names or self.names
        there = route(LaneRoute(delay_ms), names, work, ladder=Ladder.of(Settings()), lane_expires_ms=expires_ms)
        self.declare_topology(there.lane)
        return there

    def ladder(self, ladder: Ladder, *works: WorkQueue) -> None:
        """Make a ladder with a landing queue for each of these work queues."""
        self.declare_topology(
            Topology.union([rungs(self.names, ladder), *(landing(self.names, work) for work in works)])
        )

    def put(self, queue: str, ids: Iterable[int], *, headers: Mapping[str, Any] | None = None) -> None:
        """Put messages with these ids straight into a queue; returns when all are confirmed."""
        put(self.url, ids, routing_key=queue, headers=headers)

    def depth(self, queue: str) -> int | None:
        """Messages ready in a queue; None if it does not exist."""
        with self.connect() as connection:
            try:
                return int(connection.default_channel.queue_declare(queue, passive=True).message_count)
            except NotFound:
                return None

    def has_exchange(self, name: str) -> bool:
        with self.connect() as connection:
            try:
                connection.default_channel.exchange_declare(name, "fanout", passive=True)
            except NotFound:
                return False
            return True

    def take(self, queue: str) -> list[Any]:
        """All messages of a queue, as they came over the wire, and out of it."""
        found = []
        with self.connect() as connection:
            channel = connection.default_channel
            channel.auto_decode = False
            while message := channel.basic_get(queue):
                channel.basic_ack(message.delivery_tag)
                found.append(message)
        return found

    def ids(self, queue: str) -> list[int]:
        """The ids of all messages of a queue, which are taken out of it."""
        return [int(message.headers["id"]) for message in self.take(queue)]


@pytest.fixture(autouse=True)
def settled(monkeypatch) -> None:
    """Nothing here kills a broker with young quorum queues on it, so none waits for them to grow up."""
    for module in (declare_module, lanes_module):
        monkeypatch.setattr(module, "SETTLE_SECONDS", 0.0)


@pytest.fixture
def bench(broker, prefix) -> Iterator[Bench]:
    with ExitStack() as stack:
        yield Bench(url=broker.url, prefix=prefix, stack=stack)


@pytest.fixture
def alarm(broker, bench):
    """A memory alarm for as long as a test says: the broker stops reading from whoever publishes."""
    if not broker.can_restart:
        pytest.skip("needs a broker that it may disturb")
    probe, queue = bench.publisher(timeout_ms=200), bench.queue("probe")

    def is_blocked():
        try:
            with probe.producer() as producer:
                # Not empty: a blocked connection stops at the body.
                producer.publish("body", exchange="", routing_key=queue)
        except Unconfirmed:
            return True
        return False

    @contextmanager
    def sound():
        try:
            broker.ctl("set_vm_memory_high_watermark", "0.00001")
            eventually(is_blocked)
            yield
        finally:
            broker.ctl("set_vm_memory_high_watermark", "0.4")

    return sound


@pytest.fixture(params=["classic", "quorum"])
def kind(request, bench) -> str:
    bench.use(request.param)
    return request.param
