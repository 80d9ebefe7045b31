"""A topology is made to stand, or found not to."""

from __future__ import annotations

import time

import pytest
from support import eventually, silenced

from celery_dlx_retry.broker import declare as declare_module
from celery_dlx_retry.broker.declare import check, declare, require_answers
from celery_dlx_retry.errors import Forbidden, Mismatch, Missing, NoAnswer
from celery_dlx_retry.topology.names import WorkQueue
from celery_dlx_retry.topology.objects import lane as lane_topology
from celery_dlx_retry.topology.objects import shared_objects, work_queue_objects
from celery_dlx_retry.topology.specs import BindingSpec, ExchangeSpec, QueueSpec, Topology


def everything(bench, kind):
    work = WorkQueue(name=bench.queue("work", kind))
    names = bench.names
    return shared_objects(names) | work_queue_objects(names, work) | lane_topology(names, work, 60_000)


def test_declaring_again_changes_nothing_and_leaves_messages_alone(bench, kind):
    topology = everything(bench, kind)
    bench.declare_topology(topology)
    for queue in topology.queues:
        bench.put(queue.name, range(5))

    bench.declare_topology(topology)

    check(bench.connection, topology)
    for queue in topology.queues:
        assert bench.ids(queue.name) == list(range(5))


def test_a_topology_that_stands_passes_the_check(bench, kind):
    topology = everything(bench, kind)
    bench.declare_topology(topology)

    check(bench.connection, topology)


def test_the_check_names_the_first_queue_that_is_missing(bench, kind):
    topology = everything(bench, kind)

    with pytest.raises(Missing) as caught:
        check(bench.connection, topology)

    assert (caught.value.kind, caught.value.name) == ("queue", bench.names.orphans())
    assert "dlx_declare" in str(caught.value)
    assert bench.depth(bench.names.orphans()) is None


def test_the_check_names_the_first_exchange_that_is_missing(bench):
    topology = everything(bench, "classic")
    bench.declare_topology(topology)
    bench.connection.default_channel.exchange_delete(bench.names.return_exchange())

    with pytest.raises(Missing) as caught:
        check(bench.connection, topology)

    assert (caught.value.kind, caught.value.name) == ("exchange", bench.names.return_exchange())


def test_the_connection_is_good_for_more_after_a_refusal(bench):
    with pytest.raises(Missing):
        check(bench.connection, Topology(queues=(QueueSpec(name=f"{bench.prefix}.no"),)))

    bench.declare_topology(everything(bench, "classic"))


def test_a_binding_of_a_queue_that_is_gone_is_missing(bench):
    names = bench.names
    topology = shared_objects(names) | work_queue_objects(names, WorkQueue(name=f"{bench.prefix}.gone"))

    with pytest.raises(Missing) as caught:
        bench.declare_topology(topology)

    assert (caught.value.kind, caught.value.name) == ("queue", f"{bench.prefix}.gone")


LANE = {"x-queue-type": "classic", "x-message-ttl": 60_000, "x-dead-letter-exchange": "back"}


@pytest.mark.parametrize(
    ("changed", "argument", "found", "wanted"),
    [
        ({"x-message-ttl": 5}, "x-message-ttl", "5", "60000"),
        ({"x-message-ttl": None}, "x-message-ttl", "none", "60000"),
        ({"x-dead-letter-exchange": "elsewhere"}, "x-dead-letter-exchange", "elsewhere", "back"),
        ({"x-max-length": 7}, "x-max-length", "7", "none"),
        ({"x-queue-type": "quorum"}, "x-queue-type", "quorum", "classic"),
    ],
)
def test_a_queue_with_another_argument_is_a_mismatch(bench, changed, argument, found, wanted):
    name = f"{bench.prefix}.lane"
    existing = {key: value for key, value in {**LANE, **changed}.items() if value is not None}
    channel = bench.connection.default_channel
    channel.queue_declare(name, durable=True, auto_delete=False, arguments=existing)

    with pytest.raises(Mismatch) as caught:
        bench.declare_topology(Topology(queues=(QueueSpec(name=name, arguments=tuple(LANE.items())),)))

    assert caught.value.facts == {
        "kind": "queue",
        "name": name,
        "argument": argument,
        "found": found,
        "wanted": wanted,
    }
    assert f"exists with {argument}={found}; we need {wanted}." in str(caught.value)


@pytest.mark.parametrize(
    ("existing", "argument", "found", "wanted"),
    [
        (("fanout", {"alternate-exchange": "orphans"}), "type", "fanout", "direct"),
        (("direct", {"alternate-exchange": "elsewhere"}), "alternate-exchange", "elsewhere", "orphans"),
        (("direct", {}), "alternate-exchange", "none", "orphans"),
    ],
)
def test_an_exchange_with_another_argument_is_a_mismatch(bench, existing, argument, found, wanted):
    name = f"{bench.prefix}.return"
    kind, arguments = existing
    channel = bench.connection.default_channel
    channel.exchange_declare(name, kind, durable=True, auto_delete=False, arguments=arguments)
    wanted_exchange = ExchangeSpec(name=name, kind="direct", arguments=(("alternate-exchange", "orphans"),))

    with pytest.raises(Mismatch) as caught:
        bench.declare_topology(Topology(exchanges=(wanted_exchange,)))

    assert caught.value.facts == {
        "kind": "exchange",
        "name": name,
        "argument": argument,
        "found": found,
        "wanted": wanted,
    }


def test_a_mismatch_whose_text_is_cut_off_still_names_the_queue(bench):
    name = f"{bench.prefix}.{'long' * 60}"[:250]
    bench.connection.default_channel.queue_declare(name, durable=True, auto_delete=False, arguments=LANE)

    with pytest.raises(Mismatch) as caught:
        bench.declare_topology(Topology(queues=(QueueSpec(name=name, arguments=(("x-queue-type", "quorum"),)),)))

    assert caught.value.name == name


def test_who_may_not_configure_is_told_what_is_missing(bench, limited_url, kind):
    topology = everything(bench, kind)

    with pytest.raises(Forbidden) as caught:
        declare(bench.connect(url=limited_url), topology)

    assert caught.value.facts == {
        "kind": "queue",
        "name": bench.names.orphans(),
        "permission": "configure",
    }
    assert bench.depth(bench.names.orphans()) is None


def test_who_may_only_publish_and_consume_may_look(bench, limited_url):
    topology = everything(bench, "classic")
    bench.declare_topology(topology)

    check(bench.connect(url=limited_url), topology)


def test_who_may_do_nothing_with_it_may_look_up_to_rabbitmq_4_0(bench, broker, limited_url, management):
    topology = everything(bench, "classic")
    bench.declare_topology(topology)
    permit(management, limited_url, configure="", write="", read="")
    connection = bench.connect(url=limited_url)

    if broker.version.startswith(("3.", "4.0.")):
        check(connection, topology)
    else:
        with pytest.raises(Forbidden) as caught:
            check(connection, topology)
        assert caught.value.name == bench.names.orphans()


def test_who_may_not_bind_is_told_the_exchange(bench, limited_url, management):
    work = bench.work("classic")
    permit(management, limited_url, configure=".*", write="", read="")
    binding = BindingSpec(exchange=bench.names.dead(), queue=work.name, routing_key="other")

    with pytest.raises(Forbidden) as caught:
        declare(bench.connect(url=limited_url), Topology(bindings=(binding,)))

    assert caught.value.facts == {
        "kind": "queue",
        "name": work.name,
        "permission": f"bind to {bench.names.dead()!r}",
    }


def test_a_dead_letter_queue_that_does_not_answer_keeps_its_letters(bench, broker):
    if not broker.can_restart:
        pytest.skip("needs a broker that it may disturb")
    bench.use("quorum")
    topology = everything(bench, "quorum")
    dead_letters = bench.names.dead_letters(f"{bench.prefix}.work")
    bench.declare_topology(topology)
    bench.put(dead_letters, range(100))
    bench.connection.default_channel.exchange_delete(bench.names.dead())

    with silenced(broker, dead_letters):
        assert bench.depth(dead_letters) == 0, "which says nothing"
        with pytest.raises(NoAnswer) as caught:
            bench.declare_topology(topology)
        assert not bench.has_exchange(bench.names.dead())

    assert caught.value.name == dead_letters
    eventually(lambda: bench.depth(dead_letters) == 100)
    bench.declare_topology(topology)
    assert bench.ids(dead_letters) == list(range(100))


def test_what_stands_is_not_waited_for(bench, monkeypatch, kind):
    topology = everything(bench, kind)
    bench.declare_topology(topology)
    monkeypatch.setattr(declare_module, "SETTLE_SECONDS", 60.0)
    started = time.monotonic()

    bench.declare_topology(topology)

    assert time.monotonic() - started < 10


def permit(management, url, **permissions):
    user = url.split("//")[1].split(":")[0]
    management.call("PUT", f"/permissions/{management._vhost}/{user}", permissions)


def test_a_quorum_queue_that_has_a_name_and_no_process_does_not_answer(bench, broker):
    """RabbitMQ leaves one when a queue is deleted and declared again in the same moment."""
    queue = bench.queue("zombie", "quorum")
    server = (
        f'{{ok, Q}} = rabbit_amqqueue:lookup(rabbit_misc:r(<<"/">>, queue, <<"{queue}">>)), '
        "ra:force_delete_server(quorum_queues, amqqueue:get_pid(Q))."
    )
    broker.ctl("eval", server)

    with pytest.raises(NoAnswer) as caught:
        require_answers(bench.connection, [queue])

    assert caught.value.name == queue
