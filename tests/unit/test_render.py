"""A topology in the words of other tools."""

from __future__ import annotations

import json

import pytest

from celery_dlx_retry.topology.ladder import Ladder, rungs
from celery_dlx_retry.topology.names import Names, WorkQueue
from celery_dlx_retry.topology.objects import lane, shared_objects
from celery_dlx_retry.topology.objects import work_queue_objects as around_queue
from celery_dlx_retry.topology.render import definitions, facts, mermaid, rabbitmqctl, rows, terraform
from celery_dlx_retry.topology.specs import BindingSpec, ExchangeSpec, QueueSpec, Topology

NAMES = Names(kind="classic")
ORDERS = (
    shared_objects(NAMES)
    | around_queue(NAMES, WorkQueue(name="orders"))
    | lane(NAMES, WorkQueue(name="orders"), 5000)
)  # fmt: skip
BACK = "x-dead-letter-exchange=dlx.v1.return.classic x-dead-letter-routing-key=orders"
LANE = "dlx.v2.wait.classic.000000005000.orders"


def test_a_table_has_a_row_for_every_object():
    assert list(rows(ORDERS)) == [
        ("exchange", "dlx.v1.dead", "direct"),
        ("exchange", "dlx.v2.wait", "direct"),
        ("exchange", "dlx.v1.orphans.classic", "fanout"),
        ("exchange", "dlx.v1.return.classic", "direct alternate-exchange=dlx.v1.orphans.classic"),
        ("queue", "dlx.v1.orphans.classic", "x-queue-type=classic"),
        ("queue", "orders.dead", "x-queue-type=classic"),
        (
            "queue",
            LANE,
            f"x-queue-type=classic x-message-ttl=5000 {BACK}",
        ),
        ("binding", "dlx.v1.orphans.classic -> dlx.v1.orphans.classic", ""),
        ("binding", "dlx.v1.return.classic -> orders", "routing key orders"),
        ("binding", "dlx.v1.dead -> orders.dead", "routing key orders"),
        ("binding", f"dlx.v2.wait -> {LANE}", f"routing key {LANE}"),
    ]


def test_the_facts_are_the_same_objects_with_their_arguments_as_numbers_and_text():
    found = list(facts(ORDERS))

    assert len(found) == 11
    assert {
        "object": "queue",
        "name": LANE,
        "arguments": {
            "x-queue-type": "classic",
            "x-message-ttl": 5000,
            "x-dead-letter-exchange": "dlx.v1.return.classic",
            "x-dead-letter-routing-key": "orders",
        },
    } in found
    assert {
        "object": "binding",
        "exchange": "dlx.v1.dead",
        "queue": "orders.dead",
        "routing_key": "orders",
        "arguments": {},
    } in found


def test_a_rung_is_bound_by_its_header_in_every_notation():
    ladder = rungs(NAMES, Ladder(resolution_ms=100, rungs=2))
    wanted = {"x-match": "all", "dlx-rung-01": True}

    assert wanted in [it.get("arguments") for it in facts(ladder) if it["object"] == "binding"]
    assert wanted in [it["arguments"] for it in definitions(ladder, vhost="/")["bindings"]]
    assert 'jsonencode({ "x-match" = "all", "dlx-rung-01" = true })' in terraform(ladder, vhost="/")


def test_the_picture_shows_the_way_out_and_the_way_back():
    assert mermaid(ORDERS).splitlines() == [
        "flowchart LR",
        '    n0{{"dlx.v1.orphans.classic"}}',
        '    n1[("dlx.v1.orphans.classic")]',
        '    n2{{"dlx.v1.return.classic"}}',
        '    n3["orders"]',
        '    n4{{"dlx.v1.dead"}}',
        '    n5[("orders.dead")]',
        '    n6{{"dlx.v2.wait"}}',
        f'    n7[("{LANE}")]',
        "    n0 --> n1",
        '    n2 -->|"orders"| n3',
        '    n4 -->|"orders"| n5',
        f'    n6 -->|"{LANE}"| n7',
        '    n7 -.->|"after 5000 ms"| n2',
        '    n2 -.->|"no such queue"| n0',
    ]


def test_definitions_hold_everything_in_the_virtual_host():
    found = definitions(ORDERS, vhost="shop")

    assert {key: len(value) for key, value in found.items()} == {"exchanges": 4, "queues": 3, "bindings": 4}
    assert {it["vhost"] for kind in found.values() for it in kind} == {"shop"}
    assert all(it["durable"] and not it["auto_delete"] for it in found["exchanges"] + found["queues"])


def test_the_shell_command_carries_the_definitions():
    first, *body, last = rabbitmqctl(ORDERS, vhost="/").splitlines()

    assert first == "rabbitmqctl import_definitions --format json <<'DEFINITIONS'"
    assert json.loads("\n".join(body)) == definitions(ORDERS, vhost="/")
    assert last == "DEFINITIONS"


def test_terraform_makes_our_objects_and_refers_to_the_work_queue_by_name():
    text = terraform(ORDERS, vhost="/")

    assert text.count('resource "rabbitmq_exchange"') == 4
    assert text.count('resource "rabbitmq_queue"') == 3
    assert (
        """\
resource "rabbitmq_queue" "dlx_v2_wait_classic_000000005000_orders" {
  name  = "dlx.v2.wait.classic.000000005000.orders"
  vhost = "/"

  settings {
    durable        = true
    auto_delete    = false
    arguments_json = jsonencode({ "x-queue-type" = "classic", "x-message-ttl" = 5000, "x-dead-letter-exchange" = "dlx.v1.return.classic", "x-dead-letter-routing-key" = "orders" })
  }
}
"""  # noqa: E501
        in text
    )
    assert (
        """\
resource "rabbitmq_binding" "binding_1" {
  source           = rabbitmq_exchange.dlx_v1_return_classic.name
  vhost            = "/"
  destination      = "orders"
  destination_type = "queue"
  routing_key      = "orders"
}
"""
        in text
    )


@pytest.mark.parametrize(
    ("name", "written"),
    [('a"b', r'"a\"b"'), ("${var.x}", '"$${var.x}"'), ("%{if}", '"%%{if}"'), ("Bestellungen-Ü", '"Bestellungen-Ü"')],
)
def test_a_name_cannot_break_out_of_terraform(name, written):
    text = terraform(Topology(queues=(QueueSpec(name=name),)), vhost="/")

    assert f"  name  = {written}\n" in text


def test_two_names_that_look_alike_to_terraform_stay_apart():
    topology = Topology(queues=(QueueSpec(name="a.b"), QueueSpec(name="a-b"), QueueSpec(name="1")))

    labels = [line.split('"')[3] for line in terraform(topology, vhost="/").splitlines() if line[:8] == "resource"]

    assert labels == ["a_b", "a_b_1", "q_1"]


def test_a_name_cannot_break_out_of_the_picture():
    topology = Topology(
        exchanges=(ExchangeSpec(name="x", kind="direct"),),
        bindings=(BindingSpec(exchange="x", queue='q"];#', routing_key='"'),),
    )

    assert '["q#quot;];#35;"]' in mermaid(topology)
    assert '-->|"#quot;"|' in mermaid(topology)
