"""A sender writes any number into a header. Its message is done or dead all the same, and holds up no other."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal

import pytest
from support import eventually

from tests.worker.stage import stage
from tests.worker.test_hostile import ABSENT, message, nested, settle

POOL = 2
MOST = 2**63 - 1
NUMBERS = (2**31, MOST, -1, -(2**63), 0.5, 1e300, True, Decimal("1.5"), b"\xff", "9" * 30, [MOST], {"a": MOST})
COUNTS = ("retries", "dlx-replays", "dlx-crashes", "dlx-dead-attempts", "group_index", "replaced_task_nesting")
TIMES = ("dlx-first-failed-at", "dlx-parked-at", "dlx-dead-died-at-ms", "x-delivery-count")
RULES = [json.dumps({"0": number}) for number in (MOST, 2**70, 10**4000, -1, 0.5, True, None, "1", [1])]
HISTORIES = [
    json.dumps([[number, number, "E", number, "w", "OSError", number]] * 3)
    for number in (MOST, 2**70, 10**4000, -1, -(2**63), 0.5, 1e300, True, None, "1", [1], float("nan"), float("inf"))
]
LIMITS = [[number, number] for number in (2**31 - 1, 2**31, MOST, -1, 1e300, True, "1", Decimal("1.5"), b"\xff")]
TIMES_OF_DAY = ("0001-01-01T00:00:00+14:00", "0001-01-01T00:00:00", "2001-01-01T00:00:00+00:00")
DEATH = {"queue": [1], "reason": 5, "count": MOST, "time": dt.datetime(9999, 12, 31), "routing-keys": [5]}  # noqa: DTZ001
# What py-amqp reads and cannot write again, or only in a shallow stack.
UNWRITABLE = (Decimal(-(2**31)), {"deep": [Decimal(-(2**31))]}, nested(150), nested(225))


def forged(task):
    """Each number in each place, for one task."""
    for name in (*COUNTS, *TIMES):
        yield from (message(task, **{name: number}) for number in NUMBERS)
    yield from (message(task, **{"dlx-rule-retries": text}) for text in RULES)
    yield from (message(task, **{"dlx-history": text}) for text in HISTORIES)
    yield from (message(task, timelimit=limits) for limits in LIMITS)
    yield from (message(task, **{name: at}) for name in ("eta", "expires") for at in TIMES_OF_DAY)
    yield message(task, **{"x-death": [DEATH, 5], "dlx-rung-05": True})
    yield from (message(task, odd=value) for value in UNWRITABLE)
    for number in (2**70, -1, 10**4000, 0.5):
        body = {"task": task, "id": "its number", "args": [], "kwargs": {}, "retries": number}
        yield message(ABSENT, body=json.dumps(body), id=ABSENT)


@pytest.fixture(scope="module")
def project(request):
    with stage(request, dlx_crash_limit=2) as it:
        # Four messages that are never settled would stop it.
        it.worker = it.start("--prefetch-multiplier=2", module="project_hostile", concurrency=POOL).wait_until_ready()
        yield it


@pytest.mark.parametrize("task", ["hostile.succeed", "hostile.obey", "hostile.by_rule", "hostile.back_off"])
def test_a_message_with_any_number_in_a_header_is_done_or_dead(project, broker, task):
    assert_each_is_settled(project, broker, list(forged(task)))


@pytest.mark.parametrize("task", ["hostile.die", "hostile.overrun"])
def test_the_main_process_settles_a_message_with_any_number_in_a_header(project, broker, task):
    odd = [message(task, odd=value) for value in (UNWRITABLE[0], UNWRITABLE[-1])]
    odd += [message(task, retries=MOST), message(task, **{"dlx-crashes": MOST})]
    # Rules that claim more retries than there were would leave the policy all of its own, each time.
    odd += [message(task, **{"dlx-history": HISTORIES[1], "dlx-rule-retries": RULES[1]})]

    assert_each_is_settled(project, broker, odd)


def test_a_message_that_an_open_breaker_cannot_park_runs(project, broker):
    for _ in range(10):
        project.app.send_task("hostile.trip")
    eventually(lambda: len({run["pid"] for run in project.records(task="hostile.trip")}) == POOL)

    assert_each_is_settled(project, broker, [message("hostile.trip", odd=UNWRITABLE[0]) for _ in range(POOL)])


def assert_each_is_settled(project, broker, odd):
    innocent = [message() for _ in range(0, len(odd), 5)]
    for number, one in enumerate(innocent):
        odd.insert(number * 6, one)

    dead = settle(project, broker, odd).dead()

    assert [one.number for one in innocent if dead[one.number]] == []
    assert [vars(one) for one in odd if len(dead[one.number]) > 1] == []
    for letter in (letter for letters in dead.values() for letter in letters):
        assert letter.record.queue == project.queue
        assert letter.message.body
