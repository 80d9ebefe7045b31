"""What a worker's event loop publishes without waiting: each message is told of once, and truly."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import contextmanager
from itertools import count

import pytest
from kombu.asynchronous.hub import Hub
from kombu.connection import Connection
from support import eventually, proxied

from celery_dlx_retry.broker import async_publisher as pipeline
from celery_dlx_retry.broker.async_publisher import Pipeline
from celery_dlx_retry.errors import Nacked, Unconfirmed, Unpublishable, Unreachable, Unroutable
from celery_dlx_retry.topology.names import Names, WorkQueue
from celery_dlx_retry.wire.message import Message

ACK = bytes((0, 60, 0, 80))  # class and method of basic.ack


class Loop:
    """An event loop, a pipeline in it, and what was told of each message."""

    def __init__(self, url, *, timeout_ms=10_000, probe_at=""):
        self.hub = Hub()
        self.connections = []
        self.pipeline = Pipeline(
            lambda: self.connect(url),
            hub=self.hub,
            confirm_timeout_ms=timeout_ms,
            write_timeout_ms=2_000,
            probe_at=probe_at,
        )
        self.told = []

    def connect(self, url):
        self.connections.append(Connection(url, connect_timeout=2))
        return self.connections[-1]

    def publish(self, number, *, queue="", exchange="", **properties):
        message = Message(
            body=b"[]",
            content_type="application/json",
            content_encoding="utf-8",
            headers={"id": f"{number}"},
            properties=properties,
        )
        self.pipeline.publish(
            message, exchange=exchange, routing_key=queue, then=lambda problem: self.told.append((number, problem))
        )

    def run_until(self, check, *, within=20.0):
        def once():
            self.hub.run_once()
            return check()

        return eventually(once, within=within)

    def hear_of(self, count):
        """What became of so many messages, by their numbers."""
        self.run_until(lambda: len(self.told) >= count)
        assert len(self.told) == count
        return {number: type(problem) if problem else None for number, problem in self.told}


@pytest.fixture
def loop(broker):
    made = []

    def make(**options):
        made.append(Loop(options.pop("url", broker.url), **options))
        # A hub without timers looks at the clock once a second.
        made[-1].hub.call_repeatedly(0.01, lambda: None)
        return made[-1]

    yield make
    for each in made:
        each.pipeline.close()
        each.hub.close()


@pytest.fixture
def frozen(broker):
    """Stop the broker in the middle of whatever it does, for as long as a test says."""
    if not broker.can_restart:
        pytest.skip("needs a broker that it may disturb")

    @contextmanager
    def freeze():
        broker.pause()
        try:
            yield
        finally:
            broker.resume()

    return freeze


def test_each_message_is_told_of_once_when_the_broker_has_it(bench, kind, loop):
    queue, it = bench.queue(kind=kind), loop()

    for number in range(300):
        it.publish(number, queue=queue)

    assert it.hear_of(300) == dict.fromkeys(range(300))
    assert sorted(bench.ids(queue)) == list(range(300))
    assert len(it.connections) == 1


def test_it_does_not_wait_for_the_broker(bench, frozen, loop):
    queue, it = bench.queue(), loop()
    it.publish(0, queue=queue)
    it.hear_of(1)

    with frozen():
        it.publish(1, queue=queue)
        it.hub.run_once()
        assert [number for number, _ in it.told] == [0]

    assert it.hear_of(2) == {0: None, 1: None}


def test_what_is_published_is_persistent_and_keeps_its_properties(bench, loop):
    queue, it = bench.queue(x_max_priority=9), loop()

    it.publish(1, queue=queue, priority=4, correlation_id="one", reply_to="there")

    it.hear_of(1)
    (message,) = bench.take(queue)
    assert message.properties["delivery_mode"] == 2
    assert [message.properties[name] for name in ("priority", "correlation_id", "reply_to")] == [4, "one", "there"]


def test_a_full_queue_refuses_its_message_and_no_other(bench, loop):
    full, queue, it = bench.queue("full", x_max_length=1, x_overflow="reject-publish"), bench.queue(), loop()
    bench.put(full, [0])

    it.publish(1, queue=queue)
    it.publish(2, queue=full)
    it.publish(3, queue=queue)

    assert it.hear_of(3) == {1: None, 2: Nacked, 3: None}
    assert sorted(bench.ids(queue)) == [1, 3]


def test_a_message_that_no_queue_takes_is_unroutable_and_no_other(bench, loop):
    queue, it = bench.queue(), loop()

    it.publish(1, queue=queue)
    it.publish(2, queue=f"{bench.prefix}.nobody")
    it.publish(3, queue=queue)

    assert it.hear_of(3) == {1: None, 2: Unroutable, 3: None}


def test_of_two_messages_with_one_id_only_the_one_without_a_queue_is_unroutable(bench, loop):
    """All lanes with one work queue share an exchange; a second copy of the other message would run twice."""
    queue, it = bench.queue(), loop()

    it.publish(1, queue=f"{bench.prefix}.nobody")
    it.publish(1, queue=queue)
    it.hear_of(2)

    assert [type(problem) for _, problem in it.told] == [Unroutable, type(None)]


def test_a_lane_that_is_gone_is_unroutable_and_what_was_beside_it_is_not_said_to_be_there(bench, loop):
    queue, it, names = bench.queue(), loop(), Names(prefix=bench.prefix, kind="classic", bulkheads=1)
    gone = bench.lane(WorkQueue(name=queue), 1000, names=names).exchange
    it.publish(0, queue=queue, exchange=gone)
    it.hear_of(1)
    bench.connection.default_channel.exchange_delete(gone)

    it.publish(1, queue=queue, exchange=gone)
    it.publish(2, queue=queue)
    told = it.hear_of(3)
    it.publish(3, queue=queue)

    assert told[1] is Unroutable
    assert told[2] in {None, Unreachable}
    assert it.hear_of(4)[3] is None


def test_a_confirm_that_does_not_come_in_time_is_not_made_up_by_the_next_one(bench, frozen, loop):
    queue, it = bench.queue(), loop(timeout_ms=300)
    it.publish(0, queue=queue)
    it.hear_of(1)

    with frozen():
        started = time.monotonic()
        it.publish(1, queue=queue)
        assert it.hear_of(2)[1] is Unconfirmed
        assert time.monotonic() - started >= 0.3
    it.publish(2, queue=f"{bench.prefix}.nobody")

    assert it.hear_of(3)[2] is Unroutable
    assert len(it.connections) == 2


def test_a_connection_that_is_cut_leaves_nothing_said_to_be_there(bench, frozen, loop):
    queue, it = bench.queue(), loop()
    it.publish(0, queue=queue)
    it.hear_of(1)

    with frozen():
        it.publish(1, queue=queue)
        it.connections[0].connection.sock.shutdown(2)
        assert it.hear_of(2)[1] is Unreachable
        assert it.hub.readers == {}
    it.publish(2, queue=queue)

    assert it.hear_of(3)[2] is None


def test_a_closed_port_is_unreachable_and_not_tried_again_for_a_moment(loop):
    it = loop(url="amqp://guest:guest@127.0.0.1:1//")

    it.publish(1, queue="work")
    it.publish(2, queue="work")

    assert it.hear_of(2) == {1: Unreachable, 2: Unreachable}
    assert len(it.connections) == 1


@pytest.mark.parametrize("properties", [{"priority": 300}, {"correlation_id": object()}])
def test_a_message_that_cannot_be_written_is_told_of_and_the_next_one_arrives(bench, loop, properties):
    queue, it = bench.queue(), loop()

    it.publish(1, queue=queue, **properties)
    it.publish(2, queue=queue)

    assert it.hear_of(2) == {1: Unpublishable, 2: None}
    assert len(it.connections) == 1


def test_to_drain_is_to_wait_for_what_is_on_its_way(bench, loop):
    queue, it = bench.queue(), loop()

    for number in range(20):
        it.publish(number, queue=queue)
    it.pipeline.drain(within=20)

    assert sorted(it.told) == [(number, None) for number in range(20)]


def test_what_is_held_under_an_alarm_is_not_sent_later(bench, alarm, loop):
    queue, it = bench.queue(), loop(timeout_ms=500)
    other = loop(timeout_ms=20_000)
    other.publish(0, queue=queue)
    other.hear_of(1)

    with alarm():
        it.publish(1, queue=queue)
        it.publish(2, queue=queue)
        assert it.hear_of(2) == {1: Unconfirmed, 2: Unconfirmed}
        other.publish(3, queue=queue)

    assert other.hear_of(2) == {0: None, 3: None}
    it.publish(4, queue=queue)
    assert it.hear_of(3)[4] is None
    assert sorted(bench.ids(queue)) == [0, 3, 4]


def test_a_probe_that_a_queue_takes_is_answered_too(bench, loop):
    """As with an operator's policy that gives each exchange an alternate exchange: the broker returns nothing."""
    channel, exchange, unrouted = bench.connection.default_channel, f"{bench.prefix}.wait", bench.queue("unrouted")
    channel.exchange_declare(f"{exchange}.alternate", "fanout", durable=True, auto_delete=False)
    channel.queue_bind(unrouted, f"{exchange}.alternate")
    arguments = {"alternate-exchange": f"{exchange}.alternate"}
    channel.exchange_declare(exchange, "direct", durable=True, auto_delete=False, arguments=arguments)
    queue, it = bench.queue(), loop(probe_at=exchange, timeout_ms=2_000)

    it.publish(1, queue=queue)

    assert it.hear_of(1) == {1: None}
    channel.exchange_delete(exchange)
    channel.exchange_delete(f"{exchange}.alternate")


def test_a_probe_to_a_missing_exchange_is_an_answer_and_the_next_connection_is_probed(bench, alarm, loop, monkeypatch):
    monkeypatch.setattr(pipeline, "LONGEST_IDLE_SECONDS", -1.0)  # each message has a new connection
    exchange = f"{bench.prefix}.wait"
    queue, it = bench.queue(), loop(probe_at=exchange, timeout_ms=1_000)
    it.publish(0, queue=queue)
    assert it.hear_of(1) == {0: None}

    bench.connection.default_channel.exchange_declare(exchange, "direct", durable=True, auto_delete=False)
    with alarm():
        it.publish(1, queue=queue)
        assert it.hear_of(2)[1] is Unconfirmed

    it.publish(2, queue=queue)
    assert it.hear_of(3)[2] is None
    assert sorted(bench.ids(queue)) == [0, 2]
    bench.connection.default_channel.exchange_delete(exchange)


def stand_still(seconds):
    """As an event loop does while a body of the solo pool runs in it."""
    until = time.monotonic() + seconds
    eventually(lambda: time.monotonic() > until)


@contextmanager
def cut_after(seconds, loop):
    """Cut the first connection of a loop that reads for so long: it would wait for half a frame for ever."""
    timer = threading.Timer(seconds, loop.connections[0].connection.sock.shutdown, [socket.SHUT_RDWR])
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def test_a_confirm_that_stops_in_the_middle_of_its_frame_does_not_stop_the_event_loop(bench, loop):
    state = {"stops": False, "is_cut": False}

    def to_client(data):
        if state["is_cut"]:
            return b""
        if state["stops"] and ACK in data:
            state["is_cut"] = True
            return data[: data.index(ACK) + 6]
        return data

    queue, ticks = bench.queue(), []
    with proxied(bench.url, to_client=to_client) as url:
        it = loop(url=url, timeout_ms=1_000)
        it.hub.call_repeatedly(0.01, lambda: ticks.append(1))
        it.publish(0, queue=queue)
        it.hear_of(1)

        state["stops"] = True
        ticks.clear()
        with cut_after(5, it):
            it.publish(1, queue=queue)
            busy = time.process_time()
            assert it.hear_of(2)[1] is Unconfirmed
            busy = time.process_time() - busy

        state.update(stops=False, is_cut=False)
        it.publish(2, queue=queue)
        assert it.hear_of(3)[2] is None
    assert len(ticks) >= 20
    assert busy < 0.5


def test_a_confirm_that_comes_in_two_pieces_is_a_confirm(bench, loop):
    state = {"cuts": False, "rest": b""}

    def to_client(data):
        if state["cuts"] and ACK in data:
            state.update(cuts=False, rest=data[data.index(ACK) + 6 :])
            return data[: data.index(ACK) + 6]
        data, state["rest"] = state["rest"] + data, b""
        return data

    queue = bench.queue()
    with proxied(bench.url, to_client=to_client) as url:
        it = loop(url=url)
        it.publish(0, queue=queue)
        it.hear_of(1)

        state["cuts"] = True
        with cut_after(5, it):
            it.publish(1, queue=queue)
            it.run_until(lambda: state["rest"])
            it.hub.run_once()
        assert len(it.told) == 1
        it.publish(2, queue=queue)

        assert it.hear_of(3) == {0: None, 1: None, 2: None}
        assert len(it.connections) == 1


@pytest.mark.parametrize("is_new", [True, False], ids=["a new connection", "a used connection"])
def test_a_confirm_that_came_while_the_event_loop_stood_still_counts(bench, loop, is_new):
    queue, it = bench.queue(), loop(timeout_ms=300)
    if not is_new:
        it.publish(0, queue=queue)
        it.hear_of(1)

    for number in (1, 2, 3):
        it.publish(number, queue=queue)
        stand_still(0.8)
        it.hub.run_once()

    told = it.hear_of(3 if is_new else 4)
    assert set(told.values()) == {None}
    assert sorted(bench.ids(queue)) == sorted(told)


def test_a_confirm_that_comes_just_after_the_event_loop_stood_still_counts(bench, loop):
    queue, passes = bench.queue(), threading.Event()
    passes.set()

    def to_client(data):
        if ACK in data:
            passes.wait(10)
        return data

    with proxied(bench.url, to_client=to_client) as url:
        it = loop(url=url, timeout_ms=300)
        it.publish(0, queue=queue)
        it.hear_of(1)

        passes.clear()
        it.publish(1, queue=queue)
        stand_still(2.0)
        threading.Timer(0.2, passes.set).start()

        assert it.hear_of(2)[1] is None
    assert len(it.connections) == 1


def test_a_queue_whose_length_limit_is_lifted_takes_messages_again(bench, broker, loop):
    """On RabbitMQ 3.10 a channel that a full quorum queue has refused stays refused."""
    queue, other, it = bench.queue(kind="quorum"), bench.queue("other"), loop()
    definition = '{"max-length": 2, "overflow": "reject-publish"}'
    broker.ctl("set_policy", bench.prefix, f"^{queue}$", definition, "--apply-to", "queues")
    numbers = count(1)

    def outcome(target=queue):
        number = next(numbers)
        it.publish(number, queue=target)
        return it.hear_of(number)[number]

    try:
        eventually(lambda: outcome() is Nacked)
    finally:
        broker.ctl("clear_policy", bench.prefix)

    eventually(lambda: outcome() is None, within=10)
    assert outcome(other) is None
    assert len(it.connections) == 1
