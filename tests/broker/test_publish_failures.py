"""What a publish does when the broker is stuck, frozen, or was restarted."""

from __future__ import annotations

import signal
import time
from contextlib import contextmanager

import pytest
from support import eventually, proxied

from celery_dlx_retry.broker.declare import declare
from celery_dlx_retry.errors import Nacked, PublishError, Unconfirmed, Unreachable
from celery_dlx_retry.topology.objects import shared_objects

OPEN_CHANNEL = bytes((0, 20, 0, 10))  # class and method


@pytest.fixture(autouse=True)
def ours(broker):
    if not broker.can_restart:
        pytest.skip("needs a broker that it may disturb")


def send(publisher, queue, number=0):
    with publisher.producer() as producer:
        # Not empty: a blocked connection stops at the body.
        producer.publish("body", exchange="", routing_key=queue, headers={"id": number})


@contextmanager
def frozen(broker):
    broker.pause()
    try:
        yield
    finally:
        broker.resume()


@contextmanager
def at_most(seconds):
    started = time.monotonic()
    yield
    assert time.monotonic() - started < seconds


@pytest.fixture
def silent_url(broker):
    """A way to the broker on which it is never asked for a channel."""
    with proxied(broker.url, to_broker=lambda data: b"" if OPEN_CHANNEL in data else data) as url:
        yield url


class TimeIsUp(Exception):
    """As Celery's SoftTimeLimitExceeded: raised by a signal, wherever the program is."""


@contextmanager
def time_limit(seconds):
    def raise_it(*_):
        raise TimeIsUp

    before = signal.signal(signal.SIGALRM, raise_it)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_under_a_memory_alarm_no_confirm_is_made_up_and_no_copy_is_sent(bench, alarm):
    full = bench.queue("full", x_max_length=1, x_overflow="reject-publish")
    bench.put(full, [0])
    queues = [bench.queue(kind, kind) for kind in ("classic", "quorum")]
    publisher = bench.publisher(timeout_ms=500)
    send(publisher, queues[0])

    with alarm():
        with at_most(3), pytest.raises(Unconfirmed) as caught:
            send(publisher, queues[0], 1)
        assert caught.value.facts == {"exchange": "", "routing_key": queues[0], "timeout_ms": 500}
        # A new connection shows that nobody reads, before a message is written to it.
        for queue in [*queues, *queues]:
            with at_most(3), pytest.raises(Unconfirmed):
                send(publisher, queue, 1)
        assert publisher._idle == []

    # The late confirms are on their way now; none of them may be taken for that of this message.
    with pytest.raises(Nacked):
        send(publisher, full)
    for queue in queues:
        send(publisher, queue, 2)
    eventually(lambda: [bench.depth(queue) for queue in queues] == [3, 1])
    assert [sorted(bench.ids(queue)) for queue in queues] == [[0, 1, 2], [2]]


def test_heartbeats_do_not_put_off_the_confirm_timeout(bench, alarm):
    queue = bench.queue()
    publisher = bench.publisher(timeout_ms=2_000, heartbeat=2)

    with alarm(), at_most(6), pytest.raises(Unconfirmed):
        send(publisher, queue)


def test_a_frozen_broker_holds_nobody_up(bench, broker):
    queue, publisher = bench.queue(), bench.publisher(timeout_ms=500, connect_timeout=1)
    fresh = bench.publisher(timeout_ms=500, connect_timeout=1)
    send(publisher, queue)
    with fresh.connection():
        pass  # connected, but no channel is open yet

    with frozen(broker):
        with at_most(3), pytest.raises(Unconfirmed):
            send(publisher, queue, 1)
        with at_most(5), pytest.raises(Unreachable):
            send(publisher, queue, 2)
        with at_most(3), pytest.raises(PublishError):
            send(fresh, queue, 3)

    send(publisher, queue, 4)
    eventually(lambda: set(bench.ids(queue)) >= {4})


def test_a_broker_that_is_silent_after_its_handshake_is_not_to_be_reached(bench, silent_url):
    queue, publisher = bench.queue(), bench.publisher(url=silent_url, timeout_ms=500)

    with at_most(5), pytest.raises(Unreachable):
        send(publisher, queue)


def test_a_frozen_broker_does_not_hold_up_a_declaration(bench, broker):
    publisher = bench.publisher(timeout_ms=500)
    topology = shared_objects(bench.names)
    with publisher.connection() as connection:
        declare(connection, topology)

    with frozen(broker), at_most(3), pytest.raises(Unreachable), publisher.connection() as connection:
        declare(connection, topology)


def test_a_time_limit_in_the_middle_of_a_publish_drops_the_connection(bench, broker):
    queue, publisher = bench.queue(), bench.publisher()
    send(publisher, queue)

    # Long enough that the message is in the socket, also on a busy machine.
    with frozen(broker), at_most(5), time_limit(1.5), pytest.raises(TimeIsUp):
        send(publisher, queue, 1)

    assert publisher._idle == []
    full = bench.queue("full", x_max_length=1, x_overflow="reject-publish")
    bench.put(full, [0])
    with pytest.raises(Nacked):
        send(publisher, full)
    send(publisher, queue, 2)
    eventually(lambda: bench.depth(queue) == 3)
    assert sorted(bench.ids(queue)) == [0, 1, 2]


def test_a_connection_that_the_broker_closed_is_noticed_before_anything_is_written_to_it(bench, broker):
    queue, publisher = bench.queue(), bench.publisher()
    send(publisher, queue, 1)
    ((closed, _),) = publisher._idle

    broker.ctl("close_all_connections", "maintenance")
    send(publisher, queue, 2)

    assert closed not in publisher._idle
    assert bench.ids(queue) == [1, 2]


def test_after_a_crash_of_the_broker_the_next_publish_connects_anew(bench, broker):
    queue, idle, busy = bench.queue(), bench.publisher(), bench.publisher()
    send(idle, queue, 1)
    send(busy, queue, 2)

    broker.kill()
    with at_most(5), pytest.raises(Unreachable):
        send(busy, queue, 3)
    broker.start()
    # A queue made after the crash: whether one that was seconds old outlives it is the broker's affair.
    queue = bench.queue("later")
    send(idle, queue, 4)
    send(busy, queue, 5)

    assert bench.ids(queue) == [4, 5]
