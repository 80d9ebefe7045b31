"""Each rule of the doctor: what sets it off, and what does not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from celery_dlx_retry.doctor.facts import Facts, TaskFacts, WorkQueueFacts
from celery_dlx_retry.doctor.rules import RULES, SEVERITIES, findings

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
    assert {code for code, *_ in ILL} == {rule.code for rule in RULES}
    assert len({rule.code for rule in RULES}) == len(RULES)


def test_the_worst_comes_first():
    facts = replace(HEALTHY, no_management="x", confirm_publish=False, transient_messages=True)

    assert [finding.severity for finding in findings(facts)] == list(SEVERITIES)


def test_the_page_has_every_rule_as_the_code_says_it():
    rows = [
        f"| `{rule.code}` | {rule.severity} | {rule.consequence} | {rule.cure} |"
        for severity in SEVERITIES
        for rule in RULES
        if rule.severity == severity
    ]

    page = PAGE.read_text()

    assert [line for line in page.splitlines() if line.startswith("| `")] == rows
