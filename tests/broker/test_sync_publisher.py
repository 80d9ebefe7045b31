"""A publish returns when the broker has the message, and raises when it is not known to have it."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from functools import partial

import billiard
import pytest
from kombu.exceptions import EncodeError, SerializerNotInstalled
from kombu.messaging import Producer
from support import as_user, eventually, shown

from celery_dlx_retry.broker.declare import declare
from celery_dlx_retry.broker.frames import encoded
from celery_dlx_retry.broker.lanes import make_lanes
from celery_dlx_retry.errors import Nacked, Unpublishable, Unreachable, Unroutable
from celery_dlx_retry.settings import Settings
from celery_dlx_retry.testing.sandbox import LOOPBACK, free_ports
from celery_dlx_retry.topology.ladder import Ladder
from celery_dlx_retry.topology.objects import shared_objects
from celery_dlx_retry.topology.wait_route import LaneRoute, route
from celery_dlx_retry.wire.message import Message


def send(publisher, queue, body="", **options):
    with publisher.producer() as producer:
        producer.publish(body, exchange="", routing_key=queue, **options)


def test_what_is_published_has_arrived(bench, kind):
    queue = bench.queue(kind=kind)

    send(bench.publisher(), queue, headers={"id": 1})

    assert bench.ids(queue) == [1]


def test_one_connection_serves_one_publish_after_the_other(bench):
    queue, publisher = bench.queue(), bench.publisher()

    send(publisher, queue)
    ((connection, _),) = publisher._idle
    send(publisher, queue)

    assert [idle for idle, _ in publisher._idle] == [connection]
    assert bench.depth(queue) == 2


def test_twenty_threads_publish_a_thousand_messages_once_each(bench):
    queue, publisher = bench.queue(), bench.publisher()

    def fifty(thread):
        for number in range(50):
            send(publisher, queue, headers={"id": thread * 50 + number})

    with ThreadPoolExecutor(20) as pool:
        list(pool.map(fifty, range(20)))

    assert sorted(bench.ids(queue)) == list(range(1000))
    assert len(publisher._idle) <= 20


@pytest.mark.parametrize(
    ("body", "serializer", "error"),
    [(object(), "json", EncodeError), ("", "none that anybody knows", SerializerNotInstalled)],
)
def test_what_cannot_be_written_is_no_fault_of_the_broker(bench, body, serializer, error):
    queue, publisher = bench.queue(), bench.publisher()

    with pytest.raises(error):
        send(publisher, queue, body, serializer=serializer)
    send(publisher, queue)

    assert bench.depth(queue) == 1


@pytest.mark.parametrize(
    "content",
    [
        {"headers": {"odd": float("nan")}},
        {"headers": {"odd": {1}}},
        {"priority": 300},
        {"user_id": "somebody"},
        {"routing_key": "r" * 300},
    ],
    ids=shown,
)
def test_content_that_no_broker_takes_is_unpublishable_and_the_next_message_arrives(bench, content):
    queue, publisher = bench.queue(), bench.publisher()

    with pytest.raises(Unpublishable), publisher.producer() as producer:
        producer.publish("body", **{"exchange": "", "routing_key": queue, **content})
    with publisher.producer() as producer:
        producer.publish("body", exchange="", routing_key=queue, headers={"id": 1})

    assert bench.ids(queue) == [1]


@pytest.mark.parametrize(
    "value", [2**70, object(), 1j, {5: 1}, {"n" * 300: 1}, Decimal("1E+5"), [{"a": [{1}]}]], ids=shown
)
def test_what_py_amqp_cannot_write_is_unpublishable_before_a_byte_is_sent(bench, value):
    queue, channel = bench.queue(), bench.connection.default_channel

    with pytest.raises(Unpublishable, match="its content"):
        encoded(channel, b"", None, None, None, {"odd": value}, {})
    channel.basic_publish(encoded(channel, b"", None, None, None, {"id": 1}, {}), routing_key=queue)

    eventually(lambda: bench.depth(queue) == 1)


@pytest.mark.parametrize("exchange", ["", "{prefix}.no-such-exchange"])
def test_an_unroutable_publish_raises(bench, exchange):
    exchange = exchange.format(prefix=bench.prefix)
    queue, publisher = bench.queue(), bench.publisher()

    with pytest.raises(Unroutable) as caught, publisher.producer() as producer:
        producer.publish("", exchange=exchange, routing_key=f"{bench.prefix}.nowhere")
    send(publisher, queue)

    assert caught.value.facts == {"exchange": exchange, "routing_key": f"{bench.prefix}.nowhere"}
    assert bench.depth(queue) == 1


def test_an_exchange_without_a_queue_behind_it_is_unroutable(bench):
    exchange = f"{bench.prefix}.empty"
    bench.connection.default_channel.exchange_declare(exchange, "fanout", durable=True, auto_delete=False)

    with pytest.raises(Unroutable), bench.publisher().producer() as producer:
        producer.publish("", exchange=exchange, routing_key="any")


def test_a_lane_that_does_not_exist_is_declared_and_takes_the_message(bench, kind):
    work = bench.work(kind)
    there = route(LaneRoute(100), bench.names, work, ladder=Ladder.of(Settings()))
    mend = partial(make_lanes, names=bench.names, lanes=there.lane)

    with bench.publisher().producer(mend=mend) as producer:
        producer.publish("", exchange=there.exchange, routing_key=there.routing_key, headers={"id": 7})
    eventually(lambda: bench.depth(work.name))

    assert bench.ids(work.name) == [7]


def test_a_lane_whose_wait_queue_was_deleted_is_made_whole(bench):
    work = bench.work()
    there = bench.lane(work, 100)
    bench.connection.default_channel.queue_delete(bench.names.lane(work, 100))
    mend = partial(make_lanes, names=bench.names, lanes=there.lane)

    with bench.publisher().producer(mend=mend) as producer:
        producer.publish("", exchange=there.exchange, routing_key=there.routing_key, headers={"id": 7})
    eventually(lambda: bench.depth(work.name))

    assert bench.ids(work.name) == [7]


@pytest.fixture
def monitored(monkeypatch):
    """The addresses that a monitor sees which patches Kombu, as Sentry does."""
    seen, publish = [], Producer.publish

    def watch(producer, body, **options):
        seen.append((options["exchange"], options["routing_key"]))
        return publish(producer, body, **options)

    monkeypatch.setattr(Producer, "publish", watch)
    return seen


def test_a_monitor_that_patches_kombu_sees_one_publish_to_the_work_queue(bench, monitored):
    work = bench.work()
    there = route(LaneRoute(100), bench.names, work, ladder=Ladder.of(Settings()))
    mend = partial(make_lanes, names=bench.names, lanes=there.lane)

    with bench.publisher().producer(mend=mend, queue=work.name) as producer:
        producer.publish("", exchange=there.exchange, routing_key=there.routing_key, headers={"id": 7})
    eventually(lambda: bench.depth(work.name))

    assert bench.ids(work.name) == [7]
    assert monitored == [("", work.name)]


def test_a_monitor_that_patches_kombu_does_not_see_a_message_that_is_moved(bench, monitored):
    queue = bench.queue()
    message = Message(body=b"1", content_type="a/b", content_encoding=None, headers={"id": 7}, properties={})

    with bench.publisher().producer() as producer:
        producer.publish_message(message, exchange="", routing_key=queue)

    assert bench.ids(queue) == [7]
    assert monitored == []


def test_what_is_needed_and_does_not_help_is_still_unroutable(bench):
    mend = partial(declare, topology=shared_objects(bench.names))

    with pytest.raises(Unroutable), bench.publisher().producer(mend=mend) as producer:
        producer.publish("", exchange=bench.names.dead(), routing_key="nobody")


def test_a_full_queue_refuses_and_the_next_publish_is_confirmed_truly(bench, kind):
    full = bench.queue("full", kind, x_max_length=1, x_overflow="reject-publish")
    queue, publisher = bench.queue(), bench.publisher()

    with pytest.raises(Nacked) as caught:
        send_many(publisher, full)
    send(publisher, queue)

    assert caught.value.facts == {"exchange": "", "routing_key": full}
    assert bench.depth(queue) == 1


def test_a_closed_port_is_unreachable(bench):
    (port,) = free_ports(1)
    publisher = bench.publisher(url=f"amqp://guest:secret@{LOOPBACK}:{port}//")

    with pytest.raises(Unreachable, match="refused") as caught:
        send(publisher, "any")

    assert "secret" not in str(caught.value)


def test_a_wrong_password_is_unreachable(bench):
    publisher = bench.publisher(url=as_user(bench.url, f"{bench.connection.userid}:wrong"))

    with pytest.raises(Unreachable, match="ACCESS_REFUSED") as caught:
        send(publisher, "any")

    assert "wrong" not in str(caught.value)


def test_the_second_host_of_a_failover_url_is_tried(bench):
    (port,) = free_ports(1)
    queue = bench.queue()

    send(bench.publisher(url=f"amqp://{LOOPBACK}:{port}//;{bench.url}"), queue)

    assert bench.depth(queue) == 1


def test_options_that_would_weaken_the_promise_are_overruled(bench):
    queue, publisher = bench.queue(), bench.publisher(transport_options={"confirm_publish": False})
    weak = {"mandatory": False, "delivery_mode": 1, "retry": True, "expiration": 0.001, "confirm_timeout": 0}

    send(publisher, queue, headers={"expires": "tomorrow"}, **weak)
    with pytest.raises(Unroutable):
        send(publisher, f"{bench.prefix}.nowhere", **weak)

    (message,) = bench.take(queue)
    assert message.properties["delivery_mode"] == 2
    assert "expiration" not in message.properties
    assert message.headers == {"expires": "tomorrow"}


def test_what_the_broker_wrote_into_the_headers_is_left_out(bench):
    queue = bench.queue()
    of_the_broker = {
        "x-death": [{"queue": "a", "reason": "expired", "count": 1}],
        "x-first-death-queue": "a",
        "x-first-death-reason": "expired",
        "x-first-death-exchange": "",
        "x-last-death-queue": "a",
        "x-delivery-count": 3,
        "x-acquired-count": 3,
    }

    send(bench.publisher(), queue, headers={**of_the_broker, "id": 1, "x-request": "mine"})

    (message,) = bench.take(queue)
    assert message.headers == {"id": 1, "x-request": "mine"}


def test_a_publish_that_a_patch_of_kombu_swallows_is_not_confirmed(bench, monkeypatch):
    queue, publisher = bench.queue(), bench.publisher()
    monkeypatch.setattr(Producer, "publish", lambda *_, **__: None)

    with publisher.producer() as producer:
        producer.publish("", exchange="", routing_key=queue)

    assert producer.confirmed == 0
    assert bench.depth(queue) == 0


def send_many(publisher, queue):
    for _ in range(10):  # a quorum queue takes some more than its limit
        send(publisher, queue)


@pytest.mark.parametrize("fork", ["os.fork", "billiard"])
def test_a_fork_leaves_the_parents_connection_alone(bench, fork):
    queue, publisher = bench.queue(), bench.publisher()
    send(publisher, queue, headers={"id": 1})
    ((connection, _),) = publisher._idle
    socket = connection.connection.transport.sock

    def in_child():
        send(publisher, queue, headers={"id": 2})

    assert (forked(in_child) if fork == "os.fork" else spawned(in_child)) == 0
    send(publisher, queue, headers={"id": 3})

    assert [idle for idle, _ in publisher._idle] == [connection]
    assert connection.connection.transport.sock is socket
    assert bench.ids(queue) == [1, 2, 3]


def forked(target) -> int:
    """Run it in a child of os.fork(), which ends as Celery's do: without a clean-up. Its exit code."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            target()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def spawned(target) -> int:
    process = billiard.get_context("fork").Process(target=target)
    process.start()
    process.join(20)
    return process.exitcode
