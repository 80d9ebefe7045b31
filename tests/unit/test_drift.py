"""Found against wanted, and the policy that a queue needs."""

from __future__ import annotations

import json
import shlex

import pytest

from celery_dlx_retry.topology.drift import overridden, unbound
from celery_dlx_retry.topology.ladder import Ladder, rungs
from celery_dlx_retry.topology.names import Lane, Names, WorkQueue
from celery_dlx_retry.topology.objects import lane, shared_objects, work_queue_objects
from celery_dlx_retry.topology.rabbitmq_policies import BrokerPolicies, dead_letter_policy
from celery_dlx_retry.topology.specs import BindingSpec, Topology

NAMES = Names(kind="classic")
ORDERS = WorkQueue(name="orders")


def bound(exchange, queue, routing_key, *arguments):
    return BindingSpec(exchange=exchange, queue=queue, routing_key=routing_key, arguments=arguments)


def test_a_binding_that_was_not_found_is_unbound():
    topology = work_queue_objects(NAMES, WorkQueue(name="orders"))
    found = {bound("dlx.v1.dead", "orders.dead", "orders"), bound("dlx.v1.return.classic", "orders", "x")}

    (drift,) = unbound(topology, found)

    assert (drift.kind, drift.object, drift.name) == ("unbound", "binding", "dlx.v1.return.classic -> orders")
    assert "'orders'" in drift.fact


def test_bindings_that_were_found_are_no_drift():
    topology = Topology(bindings=(bound("x", "q", "k"),))

    assert list(unbound(topology, {bound("x", "q", "k"), bound("x", "other", "k")})) == []


def test_a_binding_with_other_arguments_is_another_one():
    rung = rungs(NAMES, Ladder(resolution_ms=100, rungs=1))
    (wanted,) = rung.bindings
    sorted_as_found = bound(wanted.exchange, wanted.queue, "", ("dlx-rung-00", True), ("x-match", "all"))
    other = bound(wanted.exchange, wanted.queue, "", ("dlx-rung-01", True), ("x-match", "all"))

    (drift,) = unbound(rung, {other})

    assert drift.fact.endswith("with the routing key '' and x-match=all dlx-rung-00=True.")
    assert list(unbound(rung, {sorted_as_found})) == []


@pytest.mark.parametrize(
    ("definition", "harms"),
    [
        ({"message-ttl": 4999}, ["message-ttl"]),
        ({"message-ttl": 5000}, []),
        ({"message-ttl": 60_000}, []),
        ({"expires": 60_000}, ["expires"]),
        ({"max-length": 10, "max-length-bytes": 1000}, ["max-length", "max-length-bytes"]),
        ({"delivery-limit": 20}, ["delivery-limit"]),
        ({"dead-letter-exchange": "elsewhere", "queue-leader-locator": "balanced", "ha-mode": "all"}, []),
        ({}, []),
    ],
    ids=str,
)
def test_a_policy_is_drift_if_it_takes_messages_away(definition, harms):
    topology = lane(Names(kind="quorum"), ORDERS, 5000)

    policies = BrokerPolicies(user=(broker_policy("^dlx[.]", definition), broker_policy("^other$", {"expires": 1})))

    found = list(overridden(topology, policies))

    assert [drift.kind for drift in found] == ["policy"] * len(harms)
    assert all(f"{harm}=" in drift.fact for harm, drift in zip(harms, found, strict=True))


@pytest.mark.parametrize(("places", "is_drift"), [("all", True), ("exchanges", True), ("queues", False)])
def test_a_policy_with_an_alternate_exchange_is_drift(places, is_drift):
    """A retry whose lane is missing would be confirmed in a queue of somebody else's."""
    names = Names(kind="quorum")
    policies = BrokerPolicies(user=(broker_policy(".*", {"alternate-exchange": "unrouted"}, places=places),))

    found = list(overridden(shared_objects(names), policies))

    # The return exchange has its own, which RabbitMQ prefers.
    wanted = {names.lanes(), names.dead(), names.orphans()} if is_drift else set()
    assert {(drift.kind, drift.object, drift.name) for drift in found} == {("policy", "exchange", it) for it in wanted}


def broker_policy(pattern, definition, *, priority=0, places="queues"):
    return {
        "name": pattern,
        "pattern": pattern,
        "definition": definition,
        "priority": priority,
        "apply-to": places,
    }


def test_of_the_policies_that_match_the_one_of_the_highest_priority_applies():
    policies = BrokerPolicies(
        user=(
            broker_policy("orders", {"expires": 1}, priority=1),
            broker_policy("^ord", {"expires": 2}, priority=5, places="all"),
            broker_policy("^orders$", {"expires": 3}, priority=9, places="quorum_queues"),
            broker_policy("^orders$", {"expires": 4}, priority=9, places="exchanges"),
            broker_policy("(?|broken", {"expires": 5}, priority=9),
        )
    )

    assert policies.of("orders", "classic")["name"] == "^ord"
    assert policies.of("orders", "quorum")["name"] == "^orders$"
    assert policies.of("payments", "classic") == {}


def test_an_operators_policy_adds_and_its_smaller_numbers_win():
    policies = BrokerPolicies(
        user=(broker_policy(".*", {"expires": 10, "max-length": 5, "overflow": "drop-head"}),),
        operator=(broker_policy(".*", {"expires": 5, "max-length": 9, "message-ttl": 1}),),
    )

    assert policies.definition("orders", "classic") == {
        "expires": 5,
        "max-length": 5,
        "message-ttl": 1,
        "overflow": "drop-head",
    }


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_the_lane_of_a_name_is_the_lane_that_has_it(kind):
    names = Names(kind=kind)
    name, expiring = names.lane(ORDERS, 319_299), names.lane(ORDERS, 319_299, expires_ms=600_000)
    limited = Names(kind=kind, max_waiting=7).lane(ORDERS, 319_299)

    assert NAMES.lane_of(name) == Lane(name=name, kind=kind, delay_ms=319_299, queue="orders")
    assert NAMES.lane_of(limited) == Lane(name=limited, kind=kind, delay_ms=319_299, queue="orders")
    assert NAMES.lane_of(expiring) == Lane(name=expiring, kind=kind, delay_ms=319_299, queue="orders", stays=False)


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_a_rung_is_as_long_as_its_number_says(kind):
    name = Names(kind=kind).rung(100, 7)

    assert NAMES.lane_of(name) == Lane(name=name, kind=kind, delay_ms=12_800, is_rung=True)


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_a_landing_queue_is_a_part_of_the_ladder(kind):
    name = Names(kind=kind).landing(ORDERS)

    assert NAMES.lane_of(name) == Lane(name=name, kind=kind, delay_ms=1, queue="orders", is_rung=True)


def test_a_shared_lane_names_no_work_queue():
    name = Names(bulkheads=8).lane(ORDERS, 5_000)

    assert NAMES.lane_of(name) == Lane(name=name, kind="quorum", delay_ms=5_000, queue="")


@pytest.mark.parametrize(
    ("name", "delay_ms", "is_rung", "stays"),
    [
        ("dlx.v1.wait.quorum.000000005000", 5_000, False, True),
        ("dlx.v1.wait.quorum.max7.000000005000", 5_000, False, True),
        ("dlx.v1.wait.quorum.000000005000.000000605000", 5_000, False, False),
        ("dlx.v1.ladder.quorum.00100.07", 12_800, True, True),
    ],
)
def test_lanes_of_version_1_are_still_known_and_no_longer_current(name, delay_ms, is_rung, stays):
    known = Lane(name=name, kind="quorum", delay_ms=delay_ms, is_rung=is_rung, stays=stays)

    assert NAMES.lane_of(name) == known


@pytest.mark.parametrize(
    "name",
    [
        "orders",
        "dlx.v1.wait.classic.",
        "dlx.v1.wait.classic.5000",
        "dlx.v1.wait.classic.00000000500x",
        "dlx.v1.wait.classic.\N{SUPERSCRIPT TWO}00000005000",
        "dlx.v2.wait.classic.000000005000",
        "dlx.v2.wait.classic.000000005000.",
        "dlx.v3.wait.classic.000000005000.orders",
        "dlx.v1.wait.stream.000000005000",
        "other.v1.wait.classic.000000005000",
        "dlx.v1.wait.classic.max.000000005000",
        "dlx.v1.ladder.classic.00100",
        "my.dlx.v1.wait.classic.000000005000",
    ],
)
def test_a_name_that_is_none_of_ours_has_no_lane(name):
    assert NAMES.lane_of(name) is None


def policy(kind="classic", name="orders", **facts):
    return dead_letter_policy(
        NAMES, WorkQueue(name=name), kind=kind, vhost="/", arguments=facts.pop("arguments", {}), **facts
    )


def test_the_policy_of_a_classic_queue_leads_to_its_dead_letters():
    it = policy()

    assert (it.name, it.pattern, it.priority, it.replaces) == ("dlx.v1.dead.orders", "^orders$", 0, "")
    assert it.definition == {"dead-letter-exchange": "dlx.v1.dead", "dead-letter-routing-key": "orders"}


def test_the_policy_of_a_quorum_queue_is_at_least_once_unless_its_length_is_limited():
    safely = {"dead-letter-strategy": "at-least-once", "overflow": "reject-publish"}

    assert safely.items() <= policy("quorum").definition.items()
    assert not safely.items() & policy("quorum", arguments={"x-max-length": 5}).definition.items()
    assert not safely.items() & policy("quorum", definition={"max-length-bytes": 5}).definition.items()


def test_what_another_policy_sets_is_kept_and_outranked():
    it = policy(policy="all", definition={"expires": 5, "dead-letter-exchange": "old"}, priority=7)

    assert (it.priority, it.replaces) == (8, "all")
    assert it.definition["expires"] == 5
    assert it.definition["dead-letter-exchange"] == "dlx.v1.dead"


def test_the_commands_survive_a_shell_whatever_the_queue_is_called():
    it = policy(name="a.b+c (d) 'e' $f")

    words = shlex.split(it.rabbitmqctl())
    curl = shlex.split(it.http(url="http://rabbit:15672", user="shop"))

    assert words[:8] == ["rabbitmqctl", "set_policy", "--vhost", "/", "--priority", "0", "--apply-to", "queues"]
    assert words[9] == r"^a\.b\+c \(d\) 'e' \$f$"
    assert json.loads(words[10]) == it.definition
    assert curl[-1] == "http://rabbit:15672/api/policies/%2F/dlx.v1.dead.a.b%2Bc%20%28d%29%20%27e%27%20%24f"
    assert json.loads(curl[curl.index("-d") + 1])["pattern"] == it.pattern
