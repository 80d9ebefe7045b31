"""Each rule of the doctor: what sets it off, and what does not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from celery_dlx_retry.doctor import rules
from celery_dlx_retry.doctor.facts import Facts, NodeFacts, TaskFacts, WorkQueueFacts
from celery_dlx_retry.doctor.rules import ALL_RULES, SEVERITIES, findings

DLX = {"dead-letter-exchange": "dlx.v1.dead"}
PAGE = Path(__file__).parents[2] / "docs/doctor.md"


def queue(kind="classic", *, durable=True, transient=False, **arguments):
    dashed = {key.replace("_", "-"): value for key, value in arguments.items()}
    return WorkQueueFacts(name="orders", kind=kind, durable=durable, transient=transient, arguments={**DLX, **dashed})


def bare(kind="classic", **arguments):
    it = queue(kind, **arguments)
    return replace(it, arguments={key: value for key, value in it.arguments.items() if key not in DLX})


def task(**facts):
    return TaskFacts(name="shop.charge", **facts)


def counted(**facts):
    return replace(queue(), **facts)


CLUSTER = (NodeFacts(name="rabbit@a"), NodeFacts(name="rabbit@b"))
HEALTHY = Facts(queues=(queue(),))
PLAIN = task(is_ours=False, retries=True)

ILL = [
    ("not-rabbitmq", {"transport": "redis"}, "'redis'"),
    ("unreachable", {"unreachable": "Nobody is there.", "product": "", "version": ()}, "Nobody"),
    ("old-broker", {"version": (3, 9, 29)}, "3.9.29"),
    ("old-broker", {"version": ()}, "RabbitMQ"),
    ("other-broker", {"product": "LavinMQ"}, "LavinMQ"),
    ("delay-too-long", {"too_long": "The task 'shop.charge' asks to wait 4000 days."}, "4000 days"),
    ("early-acks", {"tasks": (task(acks_late=False),)}, "shop.charge"),
    ("without-app-class", {"tasks": (task(left_out="shop.FlaskTask"),)}, "shop.FlaskTask"),
    ("consumes-dead-letters", {"consumed_by_mistake": ("orders.dead",)}, "orders.dead"),
    ("consumer-timeout", {"version": (3, 10), "tasks": (replace(PLAIN, waits_ms=(1, 1_800_000)),)}, "up to 1800 s"),
    ("consumer-timeout", {"version": (4, 2), "tasks": (task(time_limit_ms=1_800_000),)}, "may run for 1800 s"),
    ("consumer-timeout", {"version": (3, 13), "countdowns": (("nightly", 2_000_000),)}, "countdown of 2000 s"),
    (
        "consumer-timeout",
        {"queues": (queue("quorum", consumer_timeout=60_000),), "tasks": (task(time_limit_ms=90_000),)},
        "consumer timeout is 60 s",
    ),
    ("quorum-without-dlx", {"queues": (bare("quorum"),)}, "limit of 20"),
    ("quorum-without-dlx", {"queues": (bare("quorum", delivery_limit=7),), "version": (3, 10)}, "limit of 7"),
    ("delivery-limit-minus-one", {"queues": (queue("quorum", delivery_limit=-1),), "version": (3, 13)}, "=-1"),
    ("classic-lanes", {"lanes": "classic"}, "dlx_queue_type"),
    ("length-limit", {"queues": (queue(max_length=10),)}, "max-length=10"),
    ("length-limit", {"queues": (queue(max_length_bytes=10),)}, "max-length-bytes=10"),
    ("not-durable", {"queues": (queue(durable=False),)}, "orders"),
    ("transient-messages", {"transient_messages": True}, "task_default_delivery_mode"),
    ("transient-messages", {"queues": (queue(transient=True),)}, "orders"),
    ("permission", {"forbidden": ("The broker user 'shop' may not write.",)}, "may not write"),
    ("missing", {"declares": False, "missing": ("a", "b")}, "2 queues and exchanges"),
    ("drift", {"differences": ("The queue 'x' has x-message-ttl=1.",)}, "x-message-ttl"),
    ("nothing-of-ours", {"tasks": ()}, "No task"),
    ("waits-in-worker", {"tasks": (task(), PLAIN)}, "shop.charge"),
    ("prefetch-used-up", {"tasks": (task(), PLAIN)}, "4.3"),
    ("prefetch-used-up", {"tasks": (task(), PLAIN), "queues": (queue("quorum"),), "version": (3, 10)}, "orders"),
    ("worker-lost-loop", {"tasks": (task(), task(is_ours=False, reject_on_worker_lost=True))}, "shop.charge"),
    ("low-delivery-limit", {"queues": (queue("quorum", delivery_limit=5),)}, "limit of 5"),
    ("unlimited-prefetch", {"prefetch_multiplier": 0}, "is 0"),
    ("undetected-quorum", {"queues": (queue("quorum"),), "detects_quorum": False}, "orders"),
    ("queue-ttl", {"queues": (bare(message_ttl=1000),)}, "message-ttl=1000"),
    ("unconfirmed-publish", {"confirm_publish": False}, "confirm_publish"),
    ("result-expiry", {"result_expires_ms": 60_000, "longest_wait_ms": 61_000}, "60 s"),
    ("no-dead-letter-exchange", {"queues": (bare(),)}, "orders"),
    ("no-dead-letter-exchange", {"queues": (bare("quorum"),), "version": (3, 10)}, "orders"),
    ("shared-prefix", {"strangers": ("a", "b")}, "'a', 'b'."),
    ("shared-prefix", {"strangers": tuple("abcdefg")}, "'e' and 2 more."),
    ("unknown-type", {"unknown_types": ("orders",)}, "'orders'"),
    ("own-strategy", {"tasks": (task(), task(is_ours=False, strategy="celery_batches:Batches"))}, "celery_batches"),
    ("mapped-tasks", {"tasks": (task(mapped=("shop.mail",)),)}, "runs shop.mail by map()"),
    ("broker-bug", {"version": (4, 3, 4)}, "4.3.4 has the bug rabbitmq-server#17012"),
    ("broker-bug", {"version": (3, 13, 7), "nodes": CLUSTER}, "#16652"),
    ("leaders-on-one-node", {"nodes": CLUSTER, "lane_leaders": {"rabbit@a": 5}}, "all 5 quorum lanes are on rabbit@a"),
    ("many-at-least-once", {"at_least_once": 201, "version": (4, 2, 9)}, "201 queues"),
    ("broker-alarm", {"nodes": (NodeFacts(name="rabbit@a", alarms=("disk",)),)}, "rabbit@a has a disk alarm"),
    ("node-down", {"nodes": (NodeFacts(name="rabbit@b", is_running=False),)}, "rabbit@b does not run"),
    ("work-queue-missing", {"queues": (counted(exists=False, was_used=True, waiting=2),)}, "and 2 tasks wait for it"),
    ("orphans", {"orphans": 1}, "1 orphan:"),
    ("no-worker", {"queues": (counted(consumers=0, ready=3, waiting=4),)}, "3 ready, 4 waiting"),
    ("lane-overdue", {"overdue_ms": {"dlx.v2.wait.x": 90_000}}, "'dlx.v2.wait.x' is overdue for 90 s"),
    ("crash-loop", {"crash_loops": {"shop.charge": 2}}, "shop.charge kills its process: 2 dead letters"),
    ("dead-letters-growing", {"queues": (counted(dead_lately=10),)}, "10 tasks of the work queue 'orders' died"),
    ("no-consumer", {"queues": (counted(exists=False),)}, "no worker has consumed it yet"),
    ("no-consumer", {"queues": (counted(consumers=0),)}, "'orders', which is empty"),
    ("no-management", {"no_management": "Nobody answers."}, "Nobody"),
]  # fmt: skip

WELL = [
    {},
    {"version": (3, 10)},
    {"version": (4, 3), "tasks": (task(time_limit_ms=10**9),)},  # 4.3 has no timeout on classic queues
    {"version": (3, 10), "tasks": (task(retries=True, waits_ms=(10**9,)),)},  # ours waits in the broker
    {"version": (3, 10), "tasks": (task(time_limit_ms=1_799_999),)},
    {"tasks": (task(), task(is_ours=False, acks_late=False, reject_on_worker_lost=True))},
    {"tasks": (task(reject_on_worker_lost=True),)},
    {"queues": (queue("quorum"),)},
    {"queues": (queue("quorum", delivery_limit=-1),)},
    {"queues": (queue("quorum", max_length=10),)},
    {"queues": (queue("quorum", delivery_limit=5),), "prefetch_multiplier": 1},
    {"queues": (queue(message_ttl=1000),)},
    {"missing": ("a",)},  # a worker will declare it
    {"result_expires_ms": 61_000, "longest_wait_ms": 61_000},
    {"longest_wait_ms": 10**12},
    {"detects_quorum": False},
    {"version": (3, 13, 7)},  # its bugs need a cluster
    {"version": (4, 3, 5), "nodes": CLUSTER},
    {"version": (4, 4, 0), "nodes": CLUSTER},
    {"nodes": CLUSTER, "lane_leaders": {"rabbit@a": 5, "rabbit@b": 1}},
    {"nodes": CLUSTER[:1], "lane_leaders": {"rabbit@a": 50}},  # there is no other node
    {"at_least_once": 201, "version": (4, 3, 5)},
    {"queues": (counted(dead_lately=9),)},
    {"tasks": (task(mapped=("shop.mail",)),), "maps_are_ours": True},
]


@pytest.mark.parametrize(("code", "changes", "told"), ILL, ids=[f"{code}-{n}" for n, (code, *_) in enumerate(ILL)])
def test_what_bites_is_found_and_named(code, changes, told):
    found = {finding.code: finding for finding in findings(replace(HEALTHY, **changes))}

    assert code in found
    assert told in found[code].fact
    assert found[code].consequence
    assert found[code].cure


@pytest.mark.parametrize("changes", WELL, ids=str)
def test_what_does_not_bite_is_not_found(changes):
    assert findings(replace(HEALTHY, **changes)) == []


def test_of_a_broker_that_cannot_be_asked_nothing_is_made_up():
    unknown = replace(HEALTHY, unreachable="Nobody is there.", product="", version=())
    limited = replace(unknown, queues=(queue("quorum", delivery_limit=-1),), tasks=(task(time_limit_ms=10**9),))

    assert [finding.code for finding in findings(limited)] == ["unreachable"]


def test_every_rule_has_a_case_and_its_own_name():
    assert {code for code, *_ in ILL} == {rule.code for rule in ALL_RULES}
    assert len({rule.code for rule in ALL_RULES}) == len(ALL_RULES)


@pytest.mark.parametrize(
    ("version", "issues"),
    [
        ((3, 10, 8), {"#16203", "#16652"}),
        ((4, 1, 3), {"#16203", "#16652", "#14522"}),
        ((4, 2, 7), {"#16652", "#14522"}),
        ((4, 3, 0), {"#16203", "#16652", "#637", "#16974", "#17012"}),
        ((4, 3, 1), {"#16652", "#637", "#16974", "#17012"}),
        ((4, 3, 3), {"#16974", "#17012"}),
        ((4, 3, 5), set()),
        ((4, 10, 0), set()),
    ],
)
def test_each_bug_ends_with_the_release_that_fixes_it(version, issues):
    found = {f"#{bug.issue.partition('#')[2]}" for bug in rules.broker_rules.BUGS if bug.affects(version)}

    assert found == issues


@pytest.mark.parametrize(
    ("entry", "accepted"),
    [("orphans", True), ("orphans:2 orphans", True), ("orphans:3 orphans", False), ("no-worker", False)],
)
def test_a_finding_is_accepted_by_its_code_and_by_a_part_of_its_fact(entry, accepted):
    (found,) = findings(replace(HEALTHY, orphans=2), accept=[entry])

    assert found.accepted is accepted


def test_the_worst_comes_first():
    facts = replace(HEALTHY, no_management="x", confirm_publish=False, transient_messages=True)

    assert [finding.severity for finding in findings(facts)] == list(SEVERITIES)


def test_the_page_has_every_rule_as_the_code_says_it():
    rows = [f"| `{rule.code}` | {rule.severity} | {rule.consequence} | {rule.cure} |" for rule in ALL_RULES]

    page = PAGE.read_text()

    assert [line for line in page.splitlines() if line.startswith("| `")] == rows
