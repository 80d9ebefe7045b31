"""RabbitMQ routes a message to each name in its headers CC and BCC; no publish of ours passes them on."""

from __future__ import annotations

from contextlib import closing

import pytest
from kombu.asynchronous.hub import Hub
from kombu.connection import Connection
from support import eventually, put

from celery_dlx_retry.broker.async_publisher import Pipeline
from celery_dlx_retry.broker.bound_publish import publish_to_queue
from celery_dlx_retry.broker.dead_letters import replay, rewrite
from celery_dlx_retry.broker.orphans import return_orphans
from celery_dlx_retry.broker.waiting import take
from celery_dlx_retry.topology.names import Lane
from celery_dlx_retry.topology.objects import shared_objects
from celery_dlx_retry.wire.message import Message


class Post:
    """A queue that a message goes to, and one that its sender names in CC and BCC."""

    def __init__(self, bench):
        self.bench = bench
        self.work = bench.work()
        self.target, self.other = self.work.name, bench.queue("other")
        self.dead = bench.names.dead_letters(self.work.dead_letter_key)
        self.copies = {"CC": [self.other], "BCC": [self.other]}

    def message(self, **headers):
        return Message(
            body=b"[]",
            content_type="application/json",
            content_encoding="utf-8",
            headers={"id": "7", **self.copies, **headers},
            properties={},
        )

    def lay(self, queue, *, exchange="", **headers):
        """Put one there without its copies; the sender of a real one gives them to RabbitMQ, which keeps CC."""
        put(self.bench.url, [7], exchange=exchange, routing_key=queue, headers={**self.copies, **headers})
        eventually(lambda: self.bench.depth(self.other))
        self.bench.take(self.other)


def publish(post):
    with post.bench.publisher().producer() as producer:
        producer.publish("", exchange="", routing_key=post.target, headers={"id": 7, **post.copies})


def publish_with_names_of_bytes(post):
    with post.bench.publisher().producer() as producer:
        headers = {"id": 7, b"CC": [post.other], b"BCC": [post.other]}
        producer.publish("", exchange="", routing_key=post.target, headers=headers)


def publish_what_is_no_list(post):
    """RabbitMQ would close the channel."""
    with post.bench.publisher().producer() as producer:
        producer.publish("", exchange="", routing_key=post.target, headers={"id": 7, "CC": 5, "BCC": "a queue"})


def publish_a_message(post):
    with post.bench.publisher().producer() as producer:
        producer.publish_message(post.message(), exchange="", routing_key=post.target)


def import_a_letter(post):
    post.bench.declare_topology(shared_objects(post.bench.names))
    publish_to_queue(post.bench.publisher(), post.bench.names, post.target, post.message())


def publish_from_an_event_loop(post):
    hub, told = Hub(), []
    hub.call_repeatedly(0.01, lambda: None)
    pipeline = Pipeline(lambda: Connection(post.bench.url), hub=hub, confirm_timeout_ms=10_000, write_timeout_ms=2_000)
    pipeline.publish(post.message(), exchange="", routing_key=post.target, then=told.append)
    eventually(lambda: hub.run_once() or told)
    pipeline.close()
    hub.close()
    assert told == [None]


def replay_a_letter(post):
    post.lay(post.dead, **{"dlx-dead-reason": "failed", "dlx-dead-queue": post.target})
    post.bench.declare_topology(shared_objects(post.bench.names))
    moved = replay(
        *(post.bench.connect(), post.dead),
        names=post.bench.names,
        publisher=post.bench.publisher(),
        wanted=lambda _: True,
    )
    assert [problem for _, problem in moved] == [None]


def replay_a_changed_letter(post):
    post.lay(post.dead, **{"dlx-dead-reason": "failed", "dlx-dead-queue": post.target})
    post.bench.declare_topology(shared_objects(post.bench.names))
    moved = replay(
        *(post.bench.connect(), post.dead),
        names=post.bench.names,
        publisher=post.bench.publisher(),
        wanted=lambda _: True,
        change=lambda message: message.with_headers({**message.headers, **post.copies}),
    )
    assert [problem for _, problem in moved] == [None]


def edit_a_letter(post):
    post.lay(post.dead, **{"dlx-dead-reason": "failed", "dlx-dead-queue": post.target})
    post.bench.declare_topology(shared_objects(post.bench.names))
    moved = rewrite(
        *(post.bench.connect(), post.dead),
        names=post.bench.names,
        publisher=post.bench.publisher(),
        wanted=lambda _: True,
        change=lambda message: message,
    )
    assert len(list(moved)) == 1
    post.target = post.dead


def return_an_orphan(post):
    post.bench.declare_topology(shared_objects(post.bench.names))
    late = f"{post.bench.prefix}.late"
    put(post.bench.url, [7], exchange=post.bench.names.return_exchange(), routing_key=late, headers=post.copies)
    eventually(lambda: post.bench.depth(post.bench.names.orphans()))
    post.target = post.bench.queue("late")
    connection, publisher = post.bench.connect(), post.bench.publisher()
    assert return_orphans(connection, post.bench.names, {late}, publisher=publisher) == 1


def run_what_waits(post):
    there = post.bench.lane(post.work, 60_000)
    name = post.bench.names.lane(post.work, 60_000)
    post.lay(name)
    lane = Lane(name=name, kind="classic", delay_ms=60_000, queue=post.work.name)
    assert there.exchange

    def hand_over(seen, task):
        with post.bench.publisher().producer() as producer:
            producer.publish_message(seen.message, exchange="", routing_key=task.queue)

    with closing(take(post.bench.connect(), lane, {"7"}, hand_over=hand_over)) as taken:
        assert [problem for _, problem in taken] == [None]


WAYS = (
    *(publish, publish_with_names_of_bytes, publish_what_is_no_list, publish_a_message),
    *(publish_from_an_event_loop, import_a_letter, replay_a_letter, replay_a_changed_letter, edit_a_letter),
    *(return_an_orphan, run_what_waits),
)


@pytest.mark.parametrize("send", WAYS, ids=[it.__name__ for it in WAYS])
def test_a_message_with_cc_reaches_one_queue(bench, send):
    post = Post(bench)

    send(post)

    eventually(lambda: bench.depth(post.target))
    (message,) = bench.take(post.target)
    assert not {"CC", "BCC"} & message.headers.keys()
    assert bench.depth(post.other) == 0


def test_only_these_two_names_are_copies(bench):
    """RabbitMQ looks for exactly these."""
    queue = bench.queue()
    others = {"cc": ["x"], "Bcc": ["x"], "X-CC": ["x"], "x-cc": ["x"], "ACC": "x"}

    with bench.publisher().producer() as producer:
        producer.publish("", exchange="", routing_key=queue, headers=others)

    (message,) = bench.take(queue)
    assert message.headers == others
