"""A message that py-amqp cannot decode loses what cannot be decoded, and nothing else."""

from __future__ import annotations

import struct
import sys
import timeit
from datetime import datetime

import pytest
from amqp import Message as RawMessage
from amqp.serialization import decode_properties_basic
from support import CORRELATION_ID, UNDECODABLE, raw_nest, raw_properties, raw_text

from celery_dlx_retry.broker.frames import MOST_LEVELS, mended, with_readable_address
from celery_dlx_retry.errors import Unpublishable
from celery_dlx_retry.policy.reasons import Reason
from celery_dlx_retry.wire.dead_record import DeadRecord, for_replay, record_of, with_record
from celery_dlx_retry.wire.header_size import size_of
from celery_dlx_retry.wire.unreadable import UNREADABLE, unreadable_of

CONTENT = struct.pack(">HHQ", 60, 0, 4)
ORDINARY = {
    "task": "shop.charge",
    "id": "7",
    "retries": 3,
    "timelimit": [None, None],
    "eta": None,
    "argsrepr": "(1, 2)",
    "at": datetime(2020, 2, 2),  # noqa: DTZ001 - AMQP's timestamps have no zone
    "stamps": {"a": [1, {"b": b"\xff"}]},
    "dlx-dead-traceback": "x" * 2000,
}


def frame(properties):
    return CONTENT + properties


def decoded(payload):
    return decode_properties_basic(payload, len(CONTENT))[0]


def ordinary_frame():
    return frame(RawMessage(application_headers=ORDINARY, content_type="a/b", priority=3)._serialize_properties())


def test_an_ordinary_message_is_passed_on_as_it_is():
    payload = ordinary_frame()

    assert mended(payload) is payload
    assert decoded(payload)["application_headers"]["stamps"] == ORDINARY["stamps"]


@pytest.mark.parametrize("name", UNDECODABLE)
def test_what_cannot_be_decoded_is_named_and_the_rest_is_kept(name):
    headers, texts, told = UNDECODABLE[name]
    sent = {"id": raw_text("7"), **headers, "task": raw_text("shop.charge")}
    payload = frame(raw_properties(sent, {0x8000: b"application/json", **texts}))
    with pytest.raises((RecursionError, OSError, OverflowError, ValueError)):
        decoded(payload)

    found = decoded(mended(payload))

    kept = found["application_headers"]
    assert (kept["id"], kept["task"], found["content_type"]) == ("7", "shop.charge", "application/json")
    assert unreadable_of(kept) == told
    assert not {*headers, "correlation_id"} & {*kept, *found}


@pytest.mark.parametrize("kind", ["table", "array"])
def test_the_bytes_of_what_cannot_be_decoded_are_kept(kind):
    nest = raw_nest(MOST_LEVELS + 1, kind)

    found = decoded(mended(frame(raw_properties({"x": nest}))))

    assert found["application_headers"] == {UNREADABLE: {"x": nest}}


@pytest.mark.parametrize("kind", ["table", "array"])
def test_headers_as_deep_as_the_limit_are_read_and_can_be_written(kind):
    payload = frame(raw_properties({"x": raw_nest(MOST_LEVELS, kind)}))

    assert mended(payload) is payload
    headers = decoded(payload)["application_headers"]
    assert RawMessage(application_headers=headers)._serialize_properties() == payload[len(CONTENT) :]
    size_of(headers)


def test_many_tables_side_by_side_are_not_deep():
    payload = frame(RawMessage(application_headers={"x": [{"a": {}}] * 500})._serialize_properties())

    assert mended(payload) is payload


def test_a_content_header_that_is_none_does_no_harm():
    whole = frame(raw_properties({"x": raw_nest(5), "id": raw_text("7")}, {CORRELATION_ID: b"\xff\xfe"}))

    for end in range(len(CONTENT) + 2, len(whole)):
        decoded(mended(whole[:end]))


def test_a_routing_key_that_is_not_utf8_gets_question_marks():
    deliver = struct.pack(">HH", 60, 60) + b"\x02c1" + struct.pack(">QB", 300, 1)
    get_ok = struct.pack(">HH", 60, 71) + struct.pack(">QB", 300, 1)

    assert with_readable_address(deliver + b"\1e\3\xffab") == deliver + b"\1e\3?ab"
    assert with_readable_address(get_ok + b"\2\xfc1\1k" + b"\0\0\0\5") == get_ok + b"\2?1\1k" + b"\0\0\0\5"
    for fine in (deliver + b"\1e\2\xc3\xa4", deliver + b"\0\0", struct.pack(">HH", 60, 80)):
        assert with_readable_address(fine) == fine


def test_a_replay_goes_without_what_could_not_be_read():
    assert UNREADABLE not in for_replay({"id": "7", UNREADABLE: {"x": b"y"}})


@pytest.mark.parametrize("headers", [{UNREADABLE: 5}, {UNREADABLE: {}}, {}, {UNREADABLE: ["x"]}])
def test_a_forged_list_of_unreadable_headers_names_none(headers):
    assert unreadable_of(headers) == ""


def test_headers_that_are_nested_too_deeply_cannot_be_published():
    deep = {}
    for _ in range(sys.getrecursionlimit()):
        deep = {"k": [deep]}
    circular = {}
    circular["me"] = circular

    for headers in (deep, {"x": circular}):
        with pytest.raises(Unpublishable, match="nested too deeply"):
            size_of(headers)


def test_an_ordinary_message_costs_microseconds():
    from celery_dlx_retry.broker import frames as inbound  # noqa: PLC0415

    payload = ordinary_frame()
    guarded = inbound._Guarded(lambda _: None)
    seconds = min(timeit.repeat(lambda: guarded((2, 1, payload)), number=1000, repeat=5))

    assert seconds / 1000 < 20e-6  # a fiftieth of a retry, on a slow machine


def test_a_record_that_we_write_is_believed_although_an_earlier_death_cannot_be_read():
    record = DeadRecord(
        reason=Reason.INVALID,
        task="shop.charge",
        task_id="7",
        queue="work",
        dead_letter_key="work",
        worker="w",
        attempts=1,
        died_at_ms=1,
    )

    headers = with_record({UNREADABLE: {"x-death": b"y", "z": b"y"}}, record)

    assert record_of(headers) == record
    assert headers[UNREADABLE] == {"z": b"y"}
    assert record_of({**headers, UNREADABLE: {"x-death": b"y"}}) is None
