"""Whatever a sender writes into headers: each reader returns a bounded value, and what we write can be sent."""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import asdict
from decimal import Decimal

import pytest
from amqp.serialization import dumps
from hypothesis import given, settings
from hypothesis import strategies as st
from support import shown

from celery_dlx_retry.broker.peek import PeekedMessage
from celery_dlx_retry.broker.waiting import waiting_task
from celery_dlx_retry.cli.output import seconds, time_of
from celery_dlx_retry.deadletters.groups import grouped
from celery_dlx_retry.deadletters.letter import dead_message, facts_of
from celery_dlx_retry.errors import Unpublishable
from celery_dlx_retry.policy.reasons import Reason
from celery_dlx_retry.policy.rule_retries import RuleRetry, rule_retries_of, with_rule_retry
from celery_dlx_retry.topology.ladder import Ladder, skipped_rungs
from celery_dlx_retry.topology.names import Lane, Names
from celery_dlx_retry.wire.dead_record import DeadRecord, for_replay, record_of, with_record
from celery_dlx_retry.wire.header_numbers import LAST_MS, MOST_COUNT, MOST_RETRIES, count_of, retries_of, time_ms_of
from celery_dlx_retry.wire.header_size import carried, size_of
from celery_dlx_retry.wire.headers import (
    Failure,
    crashes_of,
    first_failed_at_ms,
    history_of,
    parked_at_ms_of,
    replays_of,
    with_failure,
    without_copies,
)
from celery_dlx_retry.wire.message import Message, bare
from celery_dlx_retry.wire.validation import flaw_of
from tests.unit.examples import many

NOW_MS = 1_800_000_000_000
NAMES = (
    *("task", "id", "retries", "eta", "expires", "timelimit", "group", "group_index", "argsrepr", "compression"),
    *("dlx-history", "dlx-first-failed-at", "dlx-crashes", "dlx-replays", "dlx-parked-at", "dlx-rule-retries"),
    *("dlx-exchange", "dlx-routing-key", "dlx-rung-05", "dlx-original", "dlx-trace"),
    *(
        "dlx-dead-reason",
        "dlx-dead-task",
        "dlx-dead-task-id",
        "dlx-dead-queue",
        "dlx-dead-family",
        "dlx-dead-worker",
    ),
    *("dlx-dead-attempts", "dlx-dead-died-at-ms", "dlx-dead-error-type", "dlx-dead-error", "dlx-dead-traceback"),
    *("x-death", "x-delivery-count", "CC", "BCC", "odd"),
)
# As far as AMQP carries them; 2**63 and more come in texts of JSON alone.
EDGES = [0, 1, -1, 2**31 - 1, 2**31, -(2**31), 2**53, LAST_MS, LAST_MS + 1, 2**62, 2**63 - 1, -(2**63)]
numbers = st.sampled_from(EDGES) | st.integers(-(2**63), 2**63 - 1)
times = st.datetimes(min_value=dt.datetime(1970, 1, 1), max_value=dt.datetime(9999, 12, 31))  # noqa: DTZ001 - as py-amqp
decimals = st.integers(-(2**31), 2**31 - 1).map(lambda number: Decimal(number) / 1000)
json_numbers = st.sampled_from(
    [*EDGES, 2**63, 2**70, 10**4000, 0.5, 1e300, float("nan"), float("inf"), True, None, "1"]
)
histories = st.lists(
    st.tuples(json_numbers, json_numbers, st.just("E"), json_numbers, st.just("w")).map(list)
    | st.tuples(json_numbers, json_numbers, st.just("E"), json_numbers, st.just("w"), st.just("R"), json_numbers).map(
        list
    ),
    max_size=3,
).map(json.dumps)
rules = st.dictionaries(st.sampled_from(["0", "1", "0.2"]), json_numbers, max_size=3).map(json.dumps)
etas = st.sampled_from(["9999-12-31T23:59:59-14:00", "0001-01-01T00:00:00+14:00", "0001-01-01T00:00:00", "soon"])
scalars = (
    st.none() | st.booleans() | numbers | st.floats() | decimals | times | st.binary(max_size=5) | st.text(max_size=5)
)
values = scalars | histories | rules | etas | st.sampled_from(list(Reason)).map(str)
values |= st.lists(values, max_size=2) | st.dictionaries(
    st.sampled_from(["queue", "time", "count", "a"]), values, max_size=3
)
forged = st.dictionaries(st.sampled_from(NAMES), values, max_size=8)
DEAD = DeadRecord(
    reason=Reason.FAILED,
    task="t",
    task_id="i",
    queue="q",
    dead_letter_key="q",
    worker="w",
    attempts=MOST_RETRIES + 1,
    died_at_ms=NOW_MS,
)


def letter_of(headers):
    message = Message(body=b"[]", content_type=None, content_encoding=None, headers=headers, properties={})
    return dead_message(message, queue="q.dead", exchange="", routing_key="q.dead")


@given(forged)
def test_each_number_that_is_read_is_bounded(headers):
    counts = [count_of(headers, name) for name in NAMES]
    counts += [crashes_of(headers), replays_of(headers), retries_of(headers)]
    moments = [time_ms_of(headers, name) for name in NAMES]
    moments += [parked_at_ms_of(headers), first_failed_at_ms(headers, now_ms=NOW_MS)]
    for failure in history_of(headers):
        counts += [failure.attempt, failure.rule_retry]
        moments += [failure.at_ms, failure.delay_ms or 0]
    if (record := record_of(headers)) is not None:
        counts.append(record.attempts)
        moments.append(record.died_at_ms)

    assert all(type(count) is int and 0 <= count <= MOST_COUNT for count in counts)
    assert all(type(moment) is int and 0 <= moment <= LAST_MS for moment in moments)
    assert all(time_of(moment) and seconds(moment) for moment in moments)


@given(forged, st.integers(0, MOST_RETRIES))
def test_rules_never_claim_more_retries_than_there_were(headers, retries):
    counts = rule_retries_of(headers, retries=retries)

    assert all(type(count) is int and count >= 0 for count in counts.values())
    assert sum(counts.values()) <= retries


@given(forged)
def test_a_letter_can_be_shown_whatever_its_headers_say(headers):
    letter = letter_of(headers)

    assert json.loads(json.dumps(facts_of(letter)))["dead_letter_queue"] == "q.dead"
    (group,) = grouped([letter, letter])
    assert group.facts["count"] == 2
    assert flaw_of(headers) or headers.keys() >= {"id", "task"}
    assert skipped_rungs(Names(prefix="dlx"), Ladder(resolution_ms=100, rungs=8), headers) <= {5}


@given(forged)
def test_a_task_that_waits_can_be_shown_whatever_its_headers_say(headers):
    seen = PeekedMessage(message=letter_of(headers).message, exchange="", routing_key="q", acknowledge=lambda: None)

    task = waiting_task(seen, Lane(name="l", kind="classic", delay_ms=1_000, queue="q"))

    assert json.dumps(asdict(task))
    assert all(time_of(at_ms) for at_ms in (task.due_ms, task.since_ms) if at_ms is not None)


@settings(max_examples=many(300))
@given(forged)
def test_whatever_is_carried_can_be_retried_buried_and_replayed(headers):
    """A header that AMQP cannot carry is left out first, as bury() does."""
    headers = dict(carried(headers))
    failure = Failure(attempt=MOST_RETRIES + 1, at_ms=NOW_MS, error="E", delay_ms=1, worker="w")
    rule = RuleRetry(path="0", name="E", retry=1)

    retry = with_failure(with_rule_retry(headers, rule, retries=0), failure)
    dead = with_record(with_failure(retry, failure), DEAD)

    for written in (retry, dead, for_replay(dead), for_replay(for_replay(headers))):
        assert len(dumps("F", [without_copies(written)])) <= size_of(written)
    assert record_of(dead) == DEAD
    assert history_of(dead)[-1] == failure
    assert replays_of(for_replay(dead)) <= MOST_COUNT


@given(forged)
def test_the_bare_message_can_be_written_whatever_its_headers_are(headers):
    message = bare(letter_of({**headers, "deep": {1: object()}}).message)

    letter = with_record(
        with_failure(message.headers, Failure(attempt=1, at_ms=1, error="", delay_ms=1, worker="")), DEAD
    )

    assert dumps("F", [letter])
    assert message.body == b"[]"


@pytest.mark.parametrize(("value", "read"), [(7, 7), (2**31, MOST_COUNT), (2**63 - 1, MOST_COUNT), (2**70, MOST_COUNT)])
def test_a_count_that_is_too_large_is_the_largest(value, read):
    assert count_of({"n": value}, "n") == read
    assert retries_of({"retries": value}) == min(read, MOST_RETRIES)


@pytest.mark.parametrize(
    "value", [-1, 0.5, float("nan"), float("inf"), True, "7", b"7", [7], {"a": 7}, None], ids=shown
)
def test_what_is_no_count_is_0(value):
    assert (count_of({"n": value}, "n"), time_ms_of({"n": value}, "n"), retries_of({"retries": value})) == (0, 0, 0)


@pytest.mark.parametrize("value", [LAST_MS + 1, 2**63 - 1, 2**70])
def test_a_time_after_the_year_9999_is_none(value):
    assert time_ms_of({"at": value}, "at") == 0


def test_a_value_that_is_nested_too_deeply_is_unpublishable():
    deep = "bottom"
    for _ in range(5_000):
        deep = {"k": [deep]}

    with pytest.raises(Unpublishable, match="nested too deeply"):
        size_of({"odd": deep})
    assert carried({"odd": deep, "id": "7"}) == {"id": "7"}
