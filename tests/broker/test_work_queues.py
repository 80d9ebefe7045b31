"""dlx_queue() and the type of a queue."""

from __future__ import annotations

from datetime import timedelta

import pytest
from kombu.connection import Connection
from kombu.entity import Exchange, Queue
from support import eventually

from celery_dlx_retry.broker.dead_letters import browse
from celery_dlx_retry.broker.work_queues import declared_kind, dlx_queue, found_kind, work_queue
from celery_dlx_retry.errors import ConfigurationError, InvalidQueue
from celery_dlx_retry.topology.names import WorkQueue
from celery_dlx_retry.topology.objects import shared_objects, work_queue_objects

CLASSIC = {
    "x-queue-type": "classic",
    "x-dead-letter-exchange": "dlx.v1.dead",
    "x-dead-letter-routing-key": "orders",
}
QUORUM = {**CLASSIC, "x-queue-type": "quorum"}
LENGTHS = "seconds or a timedelta from 1 ms to ten years, or a pair of them: the first and the longest."
AT_LEAST_ONCE = {"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"}


def held_back(ms):
    return {"x-delayed-retry-type": "failed", "x-delayed-retry-min": ms}


@pytest.mark.parametrize(
    ("options", "arguments"),
    [
        ({}, CLASSIC),
        ({"max_length": 9}, {**CLASSIC, "x-max-length": 9}),
        ({"max_priority": 5}, {**CLASSIC, "x-max-priority": 5}),
        ({"prefix": "shop"}, {**CLASSIC, "x-dead-letter-exchange": "shop.v1.dead"}),
        ({"queue_type": "quorum"}, {**QUORUM, **AT_LEAST_ONCE}),
        ({"queue_type": "quorum", "delivery_limit": 3}, {**QUORUM, **AT_LEAST_ONCE, "x-delivery-limit": 3}),
        # At-least-once asks for reject-publish, under which nothing over the length limit would become a dead letter.
        ({"queue_type": "quorum", "max_length": 9}, {**QUORUM, "x-max-length": 9}),
        ({"queue_type": "quorum", "delayed_retry": 1.5}, {**QUORUM, **AT_LEAST_ONCE, **held_back(1500)}),
        (
            {"queue_type": "quorum", "delayed_retry": (5, timedelta(minutes=1))},
            {**QUORUM, **AT_LEAST_ONCE, **held_back(5000), "x-delayed-retry-max": 60_000},
        ),
    ],
)
def test_the_arguments_of_a_dlx_queue_are_api(options, arguments):
    assert dlx_queue("orders", **options).queue_arguments == arguments


def test_a_dlx_queue_is_a_kombu_queue_with_an_exchange_of_its_name():
    queue = dlx_queue("orders")

    assert isinstance(queue, Queue)
    assert (queue.name, queue.exchange.name, queue.exchange.type, queue.routing_key) == (
        "orders",
        "orders",
        "direct",
        "orders",
    )
    assert queue.durable


def test_a_dlx_queue_takes_an_exchange_and_a_routing_key():
    named = dlx_queue("orders", exchange="shop", routing_key="new")
    made = dlx_queue("orders", exchange=Exchange("shop", type="topic"), routing_key="new.#")

    assert (named.exchange.name, named.exchange.type, named.routing_key) == ("shop", "direct", "new")
    assert (made.exchange.name, made.exchange.type, made.routing_key) == ("shop", "topic", "new.#")


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("", {}, "dlx_queue(''): this is not a name for a queue: it must have 1 to 200 bytes, and has 0."),
        ("q", {"queue_type": "stream"}, 'queue_type is \'stream\'; it must be "classic" or "quorum".'),
        ("q", {"delivery_limit": 3}, 'only quorum queues have a delivery limit; set queue_type="quorum".'),
        (
            "q",
            {"queue_type": "quorum", "max_priority": 3},
            "only classic queues take max_priority; quorum queues need none.",
        ),
        ("q", {"max_length": 0}, "max_length is 0; it must be a whole number from 1 to 9223372036854775807."),
        ("q", {"max_length": True}, "max_length is True; it must be a whole number from 1 to 9223372036854775807."),
        ("q", {"delayed_retry": 5}, 'only quorum queues have a delayed retry; set queue_type="quorum".'),
        *(
            (
                "q",
                {"queue_type": "quorum", "delayed_retry": given},
                f"delayed_retry is {given!r}; it must be {LENGTHS}",
            )
            for given in (0, -1, "5", (), (5, 4), (1, 2, 3), [5], True)
        ),
        ("q", {"max_priority": "9"}, "max_priority is '9'; it must be a whole number from 1 to 255."),
    ],
)
def test_what_rabbitmq_cannot_do_is_refused_in_one_sentence(name, options, sentence):
    with pytest.raises(InvalidQueue) as caught:
        dlx_queue(name, **options)

    assert str(caught.value) in {sentence, f"dlx_queue({name!r}): {sentence}"}
    assert isinstance(caught.value, ConfigurationError)


def test_a_name_of_201_bytes_is_too_long():
    dlx_queue("ü" * 100)

    with pytest.raises(InvalidQueue):
        dlx_queue("ü" * 100 + "x")


def stand(bench, kind, **options):
    """A dlx_queue on the broker with all that it needs around it."""
    queue = dlx_queue(f"{bench.prefix}.orders", queue_type=kind, prefix=bench.prefix, **options)
    queue(bench.connection.default_channel).declare()
    bench.declare_topology(shared_objects(bench.names) | work_queue_objects(bench.names, WorkQueue(name=queue.name)))
    return queue.name


def dead(bench, queue, *, count):
    name = bench.names.dead_letters(queue)
    eventually(lambda: bench.depth(name) == count)
    return list(browse(bench.connection, name))


def test_what_a_consumer_rejects_is_a_dead_letter(bench, kind):
    queue = stand(bench, kind)
    bench.put(queue, [1], headers={"task": "shop.charge", "retries": 2})

    channel = bench.connection.default_channel
    channel.basic_reject(channel.basic_get(queue).delivery_tag, requeue=False)

    (letter,) = dead(bench, queue, count=1)
    assert (letter.record.reason, letter.record.queue) == ("rejected", queue)
    assert (letter.record.task, letter.record.task_id, letter.record.attempts) == ("shop.charge", "1", 3)
    assert letter.record.died_at_ms > 0


def test_what_comes_back_more_often_than_the_delivery_limit_is_a_dead_letter(bench):
    queue = stand(bench, "quorum", delivery_limit=2)
    bench.put(queue, [1])

    channel = bench.connection.default_channel
    for _ in range(3):
        delivery = eventually(lambda: channel.basic_get(queue))
        channel.basic_reject(delivery.delivery_tag, requeue=True)

    (letter,) = dead(bench, queue, count=1)
    assert (letter.record.reason, letter.record.queue) == ("crash-loop", queue)


def test_what_is_too_much_for_a_queue_is_a_dead_letter(bench, kind):
    queue = stand(bench, kind, max_length=2)

    bench.put(queue, range(5))

    letters = dead(bench, queue, count=3)
    assert [letter.record.task_id for letter in letters] == ["0", "1", "2"]
    assert {letter.record.reason for letter in letters} == {"overflow"}
    assert bench.ids(queue) == [3, 4]


def test_what_expires_in_a_queue_is_a_dead_letter(bench, kind):
    queue = stand(bench, kind)

    # As Celery publishes a task with expires=0.1.
    bench.connection.Producer().publish(b"{}", routing_key=queue, headers={"task": "t", "id": "1"}, expiration=0.1)

    (letter,) = dead(bench, queue, count=1)
    assert (letter.record.reason, letter.record.task_id) == ("expired", "1")


def test_the_type_of_a_queue_is_found_without_touching_it(bench, management):
    arguments = {"x-dead-letter-exchange": "a", "x-dead-letter-routing-key": "b"}
    queues = {
        "untyped": Queue(f"{bench.prefix}.untyped"),
        "classic": Queue(f"{bench.prefix}.classic", queue_arguments={"x-queue-type": "classic"}),
        "quorum": Queue(f"{bench.prefix}.quorum", queue_arguments={"x-queue-type": "quorum"}),
        "priority": Queue(f"{bench.prefix}.priority", max_priority=5, queue_arguments=arguments),
        "limited": Queue(f"{bench.prefix}.limited", max_length=3, message_ttl=60, expires=90),
        "brief": Queue(f"{bench.prefix}.brief", durable=False, auto_delete=True),
        "quorum-dlx": Queue(f"{bench.prefix}.qd", queue_arguments={**arguments, "x-queue-type": "quorum"}),
    }
    for queue in queues.values():
        queue(bench.connection.default_channel).declare()
        bench.put(queue.name, range(2))
    before = described(management, bench)

    found = {name: found_kind(bench.connection, queue) for name, queue in queues.items()}

    assert found == {
        "untyped": "classic",
        "classic": "classic",
        "quorum": "quorum",
        "priority": "classic",
        "limited": "classic",
        "brief": "classic",
        "quorum-dlx": "quorum",
    }
    assert described(management, bench) == before
    assert [bench.ids(queue.name) for queue in queues.values()] == [[0, 1]] * len(queues)


def test_asking_for_the_type_of_an_absent_queue_does_not_make_it(bench):
    assert found_kind(bench.connection, Queue(f"{bench.prefix}.absent")) == "classic"
    assert bench.depth(f"{bench.prefix}.absent") is None


def test_who_may_not_configure_a_queue_is_not_told_its_type(bench, limited_url, kind):
    queue = Queue(bench.queue(kind=kind))

    assert found_kind(bench.connect(url=limited_url), queue) is None


def test_the_type_of_a_queue_with_a_long_name_is_found(bench, kind):
    queue = Queue(f"{bench.prefix}.{'n' * 180}", queue_arguments={"x-queue-type": kind})
    queue(bench.connection.default_channel).declare()
    bench.put(queue.name, range(2))

    assert found_kind(bench.connection, Queue(queue.name)) == kind
    assert bench.ids(queue.name) == [0, 1]


def test_a_virtual_host_may_make_quorum_the_default(bench, broker, management):
    if not broker.can_restart:
        pytest.skip("a virtual host is made with rabbitmqctl")
    vhost, everything = f"{bench.prefix}-vhost", dict.fromkeys(("configure", "write", "read"), ".*")
    broker.ctl("add_vhost", vhost, "--default-queue-type", "quorum")
    management.call("PUT", f"/permissions/{vhost}/{bench.connection.userid}", everything)
    try:
        with Connection(bench.url.rstrip("/") + f"/{vhost}") as connection:
            queue = Queue("untyped")
            queue(connection.default_channel).declare()

            assert declared_kind(queue) is None
            assert found_kind(connection, queue) == "quorum"
    finally:
        management.call("DELETE", f"/vhosts/{vhost}")


def test_a_work_queue_is_called_by_its_alias_if_its_name_is_random():
    queue = Queue("bcast.1234")
    queue.alias = "bcast"

    assert work_queue(queue) == WorkQueue(name="bcast.1234", dead_letter_key="bcast")


@pytest.mark.parametrize(
    ("named", "kind"), [({}, None), ({"x-queue-type": "classic"}, "classic"), ({"x-queue-type": "quorum"}, "quorum")]
)
def test_the_type_that_arguments_name_is_believed(named, kind):
    assert declared_kind(Queue("q", queue_arguments=named)) == kind


def described(management, bench):
    """Arguments and durability of all queues of a test, as the broker tells them."""
    if management is None:
        return None
    columns = "columns=name,arguments,durable,auto_delete,type"
    found = management.call("GET", f"/queues/{management._vhost}?{columns}")
    return sorted((one for one in found if bench.prefix in one["name"]), key=lambda one: one["name"])
