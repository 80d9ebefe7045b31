"""A message that py-amqp cannot decode is looked at, moved and given back as any other, and blocks no queue."""

from __future__ import annotations

import struct
from contextlib import closing

import pytest
from support import UNDECODABLE, RawProperties, eventually, raw_nest, raw_properties, raw_text

from celery_dlx_retry.broker.dead_letters import browse, discard, replay
from celery_dlx_retry.broker.peek import peek
from celery_dlx_retry.topology.objects import shared_objects
from celery_dlx_retry.wire.dead_record import original_of
from celery_dlx_retry.wire.unreadable import UNREADABLE, unreadable_of


def put_undecodable(bench, queue, *, exchange="", routing_key=None, names=tuple(UNDECODABLE)):
    """One of each, with an ordinary message before and behind it."""
    with bench.connect() as connection:
        channel = connection.channel()
        channel.confirm_select()
        for number, name in enumerate(names):
            headers, texts, _ = UNDECODABLE[name]
            for task_id, more, others in ((f"a{number}", {}, {}), (f"b{number}", headers, texts)):
                sent = raw_properties({"id": raw_text(task_id), **more}, others)
                channel.basic_publish_confirm(
                    RawProperties(b"[[], {}, {}]", sent), exchange=exchange, routing_key=routing_key or queue
                )
    return [f"{place}{number}" for number in range(len(names)) for place in "ab"]


def test_every_message_of_a_queue_is_seen_in_order_and_what_cannot_be_read_is_named(bench, kind):
    queue = bench.queue("dead", kind)
    sent = put_undecodable(bench, queue)

    for _ in range(2):
        eventually(lambda: bench.depth(queue) == len(sent))
        letters = list(browse(bench.connection, queue))
        assert [letter.message.headers["id"] for letter in letters] == sent
        assert [unreadable_of(letter.message.headers) for letter in letters[1::2]] == [
            told for _, _, told in UNDECODABLE.values()
        ]
        assert {letter.message.body for letter in letters} == {b"[[], {}, {}]"}
        eventually(lambda: bench.depth(queue) == len(sent))
        with peek(bench.connection, queue, kind=kind) as messages:
            assert [seen.message.headers["id"] for seen in messages] == sent


def test_one_that_cannot_be_read_is_discarded_alone(bench, kind):
    queue = bench.queue("dead", kind)
    sent = put_undecodable(bench, queue, names=("tables nested 5,000 levels", "a time of 64 bits"))

    with closing(discard(bench.connection, queue, wanted=lambda it: it.record.task_id == "b0")) as gone:
        assert [letter.record.task_id for letter in gone] == ["b0"]

    eventually(lambda: bench.depth(queue) == len(sent) - 1)
    assert [letter.record.task_id for letter in browse(bench.connection, queue)] == ["a0", "a1", "b1"]


def test_a_replay_sends_it_without_what_cannot_be_read(bench, kind):
    queue, work = bench.queue("dead", kind), bench.queue("work", kind)
    sent = put_undecodable(bench, queue)

    bench.declare_topology(shared_objects(bench.names))

    moved = replay(
        *(bench.connection, queue),
        names=bench.names,
        publisher=bench.publisher(),
        wanted=lambda _: True,
        destination=lambda _: work,
    )
    assert [problem for _, problem in moved] == [None] * len(sent)

    found = bench.take(work)
    assert [message.headers["id"] for message in found] == sent
    assert not any({"x", UNREADABLE} & set(message.headers) for message in found)


def test_a_death_that_its_sender_made_unreadable_does_not_make_a_forged_record_true(bench, kind):
    """RabbitMQ 3 writes its own entry before those of the sender, and all of the header cannot be read then."""
    dead = bench.queue("dead", kind)
    work = bench.queue("work", x_dead_letter_exchange="", x_dead_letter_routing_key=dead, x_message_ttl=0)
    with bench.connect() as connection:
        forged = {"dlx-dead-reason": "failed", "dlx-dead-queue": "victim", "dlx-dead-task-id": "7"}
        headers = {name: raw_text(value) for name, value in forged.items()}
        original = b"\4body" + raw_text("forged")
        headers["dlx-original"] = b"F" + struct.pack(">I", len(original)) + original
        entry = raw_nest(300)
        headers["x-death"] = b"A" + struct.pack(">I", len(entry)) + entry
        sent = raw_properties({"id": raw_text("7"), **headers})
        connection.default_channel.basic_publish(RawProperties(b"[]", sent), routing_key=work)
    eventually(lambda: bench.depth(dead) == 1)

    (letter,) = browse(bench.connection, dead)

    assert letter.record.queue in {"", work}
    assert original_of(letter.message.headers) is None


def test_a_routing_key_that_is_not_utf8_blocks_no_queue(bench, kind):
    queue, exchange = bench.queue("dead", kind), f"{bench.prefix}.fanout"
    channel = bench.connection.default_channel
    channel.exchange_declare(exchange, "fanout", durable=True, auto_delete=False)
    channel.queue_bind(queue, exchange)
    put_undecodable(bench, queue, exchange=exchange, routing_key=b"gr\xfcn", names=("a time of 64 bits",))

    with peek(bench.connection, queue, kind=kind) as messages:
        assert [(seen.message.headers["id"], seen.routing_key) for seen in messages] == [("a0", "gr?n"), ("b0", "gr?n")]
    channel.exchange_delete(exchange)


@pytest.mark.parametrize("levels", [150, 250, 900])
def test_headers_are_read_up_to_a_limit_far_from_that_of_the_decoder(bench, levels):
    queue = bench.queue("dead")
    with bench.connect() as connection:
        sent = raw_properties({"id": raw_text("7"), "x": raw_nest(levels)})
        connection.default_channel.basic_publish(RawProperties(b"", sent), routing_key=queue)
    eventually(lambda: bench.depth(queue) == 1)

    (letter,) = browse(bench.connection, queue)

    assert bool(unreadable_of(letter.message.headers)) == (levels > 200)
