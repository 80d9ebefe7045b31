"""What is moved from queue to queue stays the message that it was."""

from __future__ import annotations

import json

import pytest
from amqp import Message as RawMessage
from kombu.messaging import Producer
from support import eventually

from celery_dlx_retry.broker.dead_letters import browse
from celery_dlx_retry.wire.message import Message

PROPERTIES = {
    "content_type": "application/x-python-serialize",
    "content_encoding": "binary",
    "priority": 7,
    "correlation_id": "the task",
    "reply_to": "a queue",
    "message_id": "m",
    "timestamp": 1_709_208_000,
    "type": "t",
    "app_id": "shop",
}


def put(bench, queue, body=b"", *, connection=None, **properties):
    """Publish as any AMQP client would."""
    channel = (connection or bench.connection).default_channel
    channel.basic_publish(RawMessage(body, **properties), exchange="", routing_key=queue)
    eventually(lambda: bench.depth(queue))


def move(bench, message, queue):
    """Publish a message to a queue; it as it then lies there."""
    with bench.publisher().producer() as producer:
        producer.publish_message(message, exchange="", routing_key=queue)
    (moved,) = bench.take(queue)
    return moved


def looked_at(bench, queue):
    """The message as it lies in a queue, as whoever browses has it."""
    eventually(lambda: bench.depth(queue))  # somebody may have looked at it a moment ago
    (letter,) = browse(bench.connection, queue)
    return letter.message


def consumed(bench, queue):
    """The message as a worker has it: from a kombu consumer, which decompresses."""
    message = bench.connection.default_channel.message_to_python(bench.connection.default_channel.basic_get(queue))
    message.ack()
    return Message(
        body=message.body,
        content_type=message.content_type,
        content_encoding=message.content_encoding,
        headers=message.headers,
        properties=message.properties,
        compression=message.headers.get("compression"),
    )


@pytest.mark.parametrize("by", [looked_at, consumed])
def test_properties_stay_but_the_expiration_goes_and_the_message_is_persistent(bench, by):
    old, new = bench.queue("old"), bench.queue("new")
    put(bench, old, b"\x00\xff", delivery_mode=1, expiration="60000", application_headers={"id": "1"}, **PROPERTIES)

    moved = move(bench, by(bench, old), new)

    assert moved.body == b"\x00\xff"
    assert moved.headers == {"id": "1"}
    assert moved.properties == {**PROPERTIES, "delivery_mode": 2, "application_headers": {"id": "1"}}


@pytest.mark.parametrize("by", [looked_at, consumed])
@pytest.mark.parametrize("compression", ["gzip", "bzip2"])
@pytest.mark.parametrize("serializer", ["json", "pickle"])
def test_a_compressed_body_is_the_same_bytes_afterwards(bench, by, compression, serializer):
    old, new = bench.queue("old"), bench.queue("new")
    with bench.connection.channel() as channel:
        payload = [[1, "ü" * 500], {}, {}]
        Producer(channel).publish(
            payload, routing_key=old, compression=compression, serializer=serializer, headers={"id": "1"}
        )
    eventually(lambda: bench.depth(old))
    (letter,) = browse(bench.connection, old)
    compressed = letter.message.body

    moved = move(bench, by(bench, old), new)

    assert moved.body == compressed
    assert len(moved.body) < 500
    assert moved.headers == letter.message.headers
    assert moved.properties["content_type"] == letter.message.content_type
    assert moved.properties["content_encoding"] == letter.message.content_encoding


@pytest.mark.parametrize("by", [looked_at, consumed])
@pytest.mark.parametrize(
    ("body", "properties"),
    [
        (json.dumps({"a": "ü"}, ensure_ascii=False).encode(), {"content_type": "application/json"}),
        ("ü".encode("latin-1"), {"content_type": "text/plain", "content_encoding": "latin-1"}),
        (b"\xff\xfe not utf-8", {"content_type": "application/json", "content_encoding": "utf-8"}),
        (b"\xff\x00 nothing said", {}),
        (b"plain text", {"content_encoding": "utf-8"}),
        (b"", {"content_type": "application/json", "content_encoding": "utf-8"}),
        (b"odd", {"content_type": "application/json", "content_encoding": "no-such-encoding"}),
    ],
)
def test_a_body_of_any_kind_is_the_same_bytes_afterwards(bench, by, body, properties):
    old, new = bench.queue("old"), bench.queue("new")
    put(bench, old, body, **properties)

    moved = move(bench, by(bench, old), new)

    assert (moved.body or b"") == body  # py-amqp makes an empty one a str
    assert {key: moved.properties[key] for key in properties} == properties


def test_who_browses_sees_bytes(bench):
    queue = bench.queue()
    put(bench, queue, "ü".encode("utf-16-le"), content_type="text/plain", content_encoding="utf-16")

    message = looked_at(bench, queue)

    assert message.body == "ü".encode("utf-16-le")
    assert move(bench, message, bench.queue("new")).body == "ü".encode("utf-16-le")


def test_what_another_user_signed_can_be_moved(bench, limited_url):
    old, new = bench.queue("old"), bench.queue("new")
    connection = bench.connect(url=limited_url)
    put(bench, old, b"x", connection=connection, user_id=f"{bench.prefix}-user", content_type="text/plain")

    moved = move(bench, looked_at(bench, old), new)

    assert moved.body == b"x"
    assert "user_id" not in moved.properties
