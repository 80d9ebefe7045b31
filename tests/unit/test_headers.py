"""The wire format is API: what is written stands here as a literal, and nothing that is read can raise."""

import json
import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest
from amqp.serialization import dumps, loads
from hypothesis import given
from hypothesis import strategies as st
from support import shown

from celery_dlx_retry.policy.reasons import Reason
from celery_dlx_retry.wire.dead_record import DeadRecord, for_replay, record_of, with_record, without_record
from celery_dlx_retry.wire.header_size import size_of
from celery_dlx_retry.wire.headers import (
    LAST_MS,
    MOST_COUNT,
    Failure,
    address_of,
    crashes_of,
    cut,
    describe,
    first_failed_at_ms,
    history_of,
    with_address,
    with_failure,
    without_broker_headers,
)
from celery_dlx_retry.wire.message import Message
from celery_dlx_retry.wire.trimmed_headers import trimmed

FRAME_BYTES = 131_072
SURROGATE = "\ud800"

FAILURE = Failure(attempt=1, at_ms=1_700_000_000_000, error="OSError: gone", delay_ms=1_000, worker="w@host")
RECORD = DeadRecord(
    reason=Reason.EXHAUSTED,
    task="shop.charge",
    task_id="7b1c",
    queue="orders",
    dead_letter_key="orders",
    worker="w@host",
    attempts=4,
    died_at_ms=1_700_000_009_000,
    error_type="OSError",
    error="gone",
    traceback="Traceback …",
)
BROKER_HEADERS = {
    "x-death": [{"queue": "orders", "reason": "rejected"}],
    "x-first-death-exchange": "orders",
    "x-first-death-queue": "orders",
    "x-first-death-reason": "rejected",
    "x-last-death-exchange": "orders",
    "x-last-death-queue": "orders",
    "x-last-death-reason": "rejected",
    "x-delivery-count": 3,
    "x-acquired-count": 4,
}


def on_the_wire(headers):
    return dumps("F", [headers])


def after_the_wire(headers):
    (table,), _ = loads("F", on_the_wire(headers), 0)
    return table


def fail(headers, attempts, *, error="E"):
    for attempt in attempts:
        failure = Failure(attempt=attempt, at_ms=attempt, error=error, delay_ms=None, worker="w")
        headers = with_failure(headers, failure)
    return headers


counts = st.integers(0, MOST_COUNT)
times = st.integers(0, LAST_MS)
short_texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=10)
failures = st.builds(
    Failure,
    attempt=counts,
    at_ms=times,
    error=short_texts,
    delay_ms=st.none() | times,
    worker=short_texts,
)
failures |= st.builds(
    Failure,
    attempt=counts,
    at_ms=times,
    error=short_texts,
    delay_ms=times,
    worker=short_texts,
    rule=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=10),
    rule_retry=counts,
)
records = st.builds(
    DeadRecord,
    reason=st.sampled_from(Reason),
    task=short_texts,
    task_id=short_texts,
    queue=short_texts,
    dead_letter_key=short_texts,
    worker=short_texts,
    attempts=counts,
    died_at_ms=times,
    error_type=short_texts,
    error=short_texts,
    traceback=short_texts,
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=4,
)
anything = json_values | st.binary(max_size=5)


# --- the history of attempts ---


def test_the_history_of_version_1():
    headers = with_failure({"id": "7b1c"}, FAILURE)
    headers = with_failure(
        headers, Failure(attempt=2, at_ms=1_700_000_001_500, error="Ärger: …", delay_ms=None, worker="w@host")
    )

    assert headers == {
        "id": "7b1c",
        "dlx-history": (
            '[[1,1700000000000,"OSError: gone",1000,"w@host"],[2,1700000001500,"\\u00c4rger: \\u2026",null,"w@host"]]'
        ),
        "dlx-first-failed-at": 1_700_000_000_000,
    }


def test_a_retry_that_a_rule_granted_names_the_rule():
    headers = with_failure({}, replace(FAILURE, rule="TimeoutError", rule_retry=2))

    assert headers["dlx-history"] == '[[1,1700000000000,"OSError: gone",1000,"w@host","TimeoutError",2]]'
    assert (history_of(headers)[0].rule, history_of(headers)[0].rule_retry) == ("TimeoutError", 2)


def test_a_long_name_of_a_rule_is_cut():
    headers = with_failure({}, replace(FAILURE, rule="(" + "TimeoutError, " * 100 + ")", rule_retry=2))

    assert len(history_of(headers)[0].rule) <= 60


def test_a_message_that_never_failed_has_no_history():
    assert history_of({}) == ()


@given(st.lists(failures, min_size=1, max_size=5))
def test_a_history_comes_back_as_it_was_written(written):
    headers = {}
    for failure in written:
        headers = with_failure(headers, failure)

    assert history_of(after_the_wire(headers)) == tuple(written)


@pytest.mark.parametrize("attempts", [20, 21, 22, 60])
def test_a_history_keeps_the_first_and_the_newest_nineteen(attempts):
    headers = fail({}, range(1, attempts + 1))

    assert [failure.attempt for failure in history_of(headers)] == [1, *range(attempts - 18, attempts + 1)]


def test_a_history_stays_small_whatever_the_errors_say():
    headers = fail({}, range(25), error="\0" * 100_000)

    assert len(on_the_wire(headers)) < 30_000


def test_a_long_error_is_cut_in_the_history():
    (failure,) = history_of(fail({}, [1], error="a" * 150 + "b" * 150))

    assert failure.error == "a" * 64 + "\n[...]\n" + "b" * 129


def test_a_failure_strips_what_the_broker_wrote_and_leaves_the_rest():
    headers = with_failure({**BROKER_HEADERS, "id": "7b1c", "x-custom": 1}, FAILURE)

    assert set(headers) == {"id", "x-custom", "dlx-history", "dlx-first-failed-at"}


def test_a_failure_changes_no_headers_but_its_own_copy():
    headers = {"id": "7b1c", **BROKER_HEADERS}
    before = dict(headers)

    with_failure(headers, FAILURE)
    with_record(headers, RECORD)
    for_replay(headers)

    assert headers == before


FORGED = {
    "none": None,
    "int": 7,
    "float": 1.5,
    "list": [[1, 2, "E", 3, "w"]],
    "dict": {"a": 1},
    "bytes that are no text": b"\xff\xfe[",
    "empty": "",
    "not JSON": "[[1,2,",
    "an object": '{"a":1}',
    "a number": "5",
    "a string": '"abcde"',
    "null": "null",
    "infinity": '[[Infinity,1,"E",1,"w"]]',
    "no number": '[[NaN,1,"E",1,"w"]]',
    "short rows": "[[1,2,3]]",
    "long rows": "[[1,2,3,4,5,6]]",
    "rows that are numbers": "[1,2,3]",
    "words for numbers": '[["one",1,"E",1,"w"]]',
    "lists for numbers": '[[[],1,"E",1,"w"]]',
    "a number of 4,000 digits": f'[[1,{"9" * 4_000},"E",1,"w"]]',
    "a number of 5,000 digits": f'[[1,{"9" * 5_000},"E",1,"w"]]',
    "a delay beyond 64 bits": f'[[1,1,"E",{2**63},"w"]]',
    "a delay that ends after the year 9999": f'[[1,1,"E",{LAST_MS + 1},"w"]]',
    "a time after the year 9999": f'[[1,{2**63 - 1},"E",1,"w"]]',
    "a time before 1970": '[[1,-1,"E",1,"w"]]',
    "a negative attempt": '[[-1,1,"E",1,"w"]]',
    "an attempt beyond any count": f'[[{2**31},1,"E",1,"w"]]',
    "half an attempt": '[[0.5,1,"E",1,"w"]]',
    "an attempt that is true": '[[true,1,"E",1,"w"]]',
    "a retry of a rule beyond any count": f'[[1,1,"E",1,"w","E",{2**31}]]',
    "deep lists": "[" * 100_000,
    "deep lists that end": "[" * 100_000 + "]" * 100_000,
    "deep objects": '{"a":' * 100_000,
    "a megabyte": "x" * 1_000_000,
    "a list of many zeros": "[" + "0," * 100_000 + "0]",
}


@pytest.mark.parametrize("forged", FORGED.values(), ids=FORGED)
def test_a_foreign_history_is_no_history_and_the_next_failure_starts_anew(forged):
    headers = {"dlx-history": forged}

    assert history_of(headers) == ()
    assert history_of(with_failure(headers, FAILURE)) == (FAILURE,)


def test_a_forged_history_of_a_megabyte_shrinks_to_the_newest():
    rows = [[attempt, 1, "E" * 1_000, 1, "w" * 1_000] for attempt in range(500)]

    history = history_of({"dlx-history": json.dumps(rows)})

    assert [failure.attempt for failure in history] == list(range(480, 500))
    assert all(len(failure.error) == len(failure.worker) == 200 for failure in history)


@given(anything)
def test_no_history_makes_anything_raise(forged):
    headers = with_failure({"dlx-history": forged}, FAILURE)

    assert history_of(headers)[-1] == FAILURE


@given(st.lists(json_values, min_size=5, max_size=5))
def test_no_json_makes_a_history_that_cannot_be_sent(row):
    headers = with_failure({"dlx-history": json.dumps([row])}, FAILURE)

    assert after_the_wire(headers) == headers


def test_a_history_of_lone_surrogates_becomes_valid_text():
    (failure,) = history_of({"dlx-history": '[[1,1,"\\ud800",null,"\\udfff"]]'})

    assert (failure.error, failure.worker) == ("?", "?")


# --- the first failure ---


def test_the_first_failure_keeps_its_time():
    headers = fail({}, [5, 6, 7])

    assert headers["dlx-first-failed-at"] == 5
    assert first_failed_at_ms(headers, now_ms=9) == 5


@pytest.mark.parametrize("value", [None, 0, -1, 101, True, "50", 50.0, [50]], ids=shown)
def test_a_first_failure_that_makes_no_sense_is_now(value):
    assert first_failed_at_ms({"dlx-first-failed-at": value}, now_ms=100) == 100


def test_without_a_first_failure_it_is_now():
    assert first_failed_at_ms({}, now_ms=100) == 100


# --- crashes ---


def test_crashes_are_counted_in_a_header_of_version_1():
    assert crashes_of({"dlx-crashes": 2}) == 2


@pytest.mark.parametrize("value", [None, -1, True, "2", 2.0, [2]], ids=shown)
def test_a_count_of_crashes_that_makes_no_sense_is_none(value):
    assert crashes_of({"dlx-crashes": value}) == 0
    assert crashes_of({}) == 0


# --- the broker's headers ---


@pytest.mark.parametrize("header", BROKER_HEADERS)
def test_what_the_broker_wrote_is_dropped(header):
    assert without_broker_headers({header: BROKER_HEADERS[header], "id": "7b1c"}) == {"id": "7b1c"}


@pytest.mark.parametrize("header", ["x-custom", "x-match", "x-retry", "X-Death", "death", b"x-caf\xe9"], ids=shown)
def test_what_others_wrote_is_kept(header):
    assert without_broker_headers({header: 1}) == {header: 1}
    assert without_record({header: 1}) == {header: 1}


# --- the dead-letter record ---


def test_the_record_of_version_1():
    assert with_record({"id": "7b1c", "x-custom": 1, **BROKER_HEADERS}, RECORD) == {
        "id": "7b1c",
        "x-custom": 1,
        "dlx-dead-reason": "exhausted",
        "dlx-dead-task": "shop.charge",
        "dlx-dead-task-id": "7b1c",
        "dlx-dead-queue": "orders",
        "dlx-dead-family": "orders",
        "dlx-dead-worker": "w@host",
        "dlx-dead-attempts": 4,
        "dlx-dead-died-at-ms": 1_700_000_009_000,
        "dlx-dead-error-type": "OSError",
        "dlx-dead-error": "gone",
        "dlx-dead-traceback": "Traceback …",
    }


def test_the_reasons_of_version_1():
    assert {str(reason) for reason in Reason} == {
        "exhausted",
        "budget",
        "failed",
        "requested",
        "rejected",
        "timeout",
        "worker-lost",
        "crash-loop",
        "unknown-task",
        "invalid",
        "undecodable",
        "unroutable",
        "overflow",
        "expired",
    }


def test_the_reason_goes_over_the_wire_as_plain_text():
    assert type(with_record({}, RECORD)["dlx-dead-reason"]) is str


@given(records)
def test_a_record_comes_back_as_it_was_written(record):
    assert record_of(after_the_wire(with_record({"id": "7b1c"}, record))) == record


@given(records, records)
def test_a_second_record_replaces_the_first(first, second):
    assert with_record(with_record({"id": "7b1c"}, first), second) == with_record({"id": "7b1c"}, second)


def test_a_record_comes_off_again_without_a_trace():
    assert without_record(with_record({"id": "7b1c"}, RECORD)) == {"id": "7b1c"}


def test_a_record_may_leave_out_what_has_a_default():
    headers = with_record({}, RECORD)
    for name in ("error-type", "error", "traceback"):
        del headers[f"dlx-dead-{name}"]

    record = record_of(headers)

    assert (record.error_type, record.error, record.traceback) == ("", "", "")


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("reason", "bored"),
        ("reason", None),
        ("reason", ["failed"]),
        ("reason", {}),
        ("task", 7),
        ("queue", None),
        ("traceback", [1]),
        ("attempts", "four"),
        ("attempts", -1),
        ("attempts", True),
        ("died-at-ms", 1.5),
        ("died-at-ms", "now"),
        ("died-at-ms", 10**17),
    ],
)
def test_a_forged_record_is_none_and_does_not_hide_what_the_broker_tells(header, value):
    forged = {**with_record({}, RECORD), f"dlx-dead-{header}": value}

    assert record_of(forged) is None
    assert record_of({**forged, **BROKER_HEADERS}).reason is Reason.REJECTED


@pytest.mark.parametrize("header", ["reason", "queue"])
def test_a_record_without_its_reason_or_its_queue_is_none(header):
    headers = with_record({}, RECORD)
    del headers[f"dlx-dead-{header}"]

    assert record_of(headers) is None


def test_reason_and_queue_are_a_record_and_celerys_headers_tell_the_rest():
    headers = {"dlx-dead-reason": "failed", "dlx-dead-queue": "orders", "task": "t", "id": "7", "retries": 2}

    assert record_of(headers) == DeadRecord(
        reason=Reason.FAILED,
        task="t",
        task_id="7",
        queue="orders",
        dead_letter_key="orders",
        worker="",
        attempts=3,
        died_at_ms=0,
    )


@given(st.sampled_from(list(with_record({}, RECORD))), anything, anything, anything)
def test_no_headers_make_record_of_raise(header, value, deaths, other):
    record = record_of({**with_record({}, RECORD), header: value, "x-death": deaths, "retries": other, "task": other})

    assert record is None or isinstance(record.reason, Reason)


# --- it fits a frame ---

HOSTILE = {
    "letters": "x",
    "NULs": "\0",
    "quotes": "'\"",
    "backslashes": "\\",
    "umlauts": "ä",
    "CJK": "漢",
    "emoji": "🐇",
    "lone surrogates": SURROGATE,
    "newlines": "\n",
}
MESSAGE_HEADERS = {
    "none": {},
    "one long text": {"argsrepr": "x" * 80_000},
    "one long text of NULs": {"argsrepr": "\0" * 80_000},
    "one long text of emoji": {"argsrepr": "🐇" * 20_000},
    "one long task name": {"task": "t" * 80_000},
    "a list of numbers": {"stamps": list(range(16_000))},
    "a list of empty lists": {"stamps": [[]] * 16_000},
    "tables in tables": {"stamps": [{"a": {"b": True}}] * 5_000},
    "many keys": {f"{number:05d}": None for number in range(11_000)},
    "many keys of emoji": {"🐇" * 50 + f"{number:05d}": 1 for number in range(370)},
    "bytes": {"raw": b"\xff" * 80_000},
}


def died_of(text, *, task="t"):
    return DeadRecord(
        reason=Reason.FAILED,
        task=task,
        task_id=text,
        queue="q" * 255,
        dead_letter_key="q" * 255,
        worker=text,
        attempts=1,
        died_at_ms=1,
        error_type=text,
        error=text,
        traceback=text,
    )


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_a_dead_letter_fits_one_frame_whatever_it_died_of(text):
    headers = {"argsrepr": "x" * 80_000}

    letter = with_record(with_failure(headers, FAILURE), died_of(text * 100_000))

    assert len(on_the_wire(letter)) < FRAME_BYTES - 10_000  # the properties have their place too
    assert letter["dlx-dead-traceback"]


@pytest.mark.parametrize("headers", MESSAGE_HEADERS.values(), ids=MESSAGE_HEADERS)
def test_a_dead_letter_fits_one_frame_whatever_its_message_carried(headers):
    record = died_of("".join(HOSTILE.values()) * 10_000, task=headers.get("task", "t"))

    letter = with_record(with_failure(headers, FAILURE), record)

    assert len(on_the_wire(letter)) <= min(size_of(letter), FRAME_BYTES - 10_000)
    assert {key: letter[key] for key in headers} == headers


def test_megabytes_of_traceback_keep_their_beginning_and_their_end():
    record = DeadRecord(**{**as_dict(RECORD), "traceback": "first\n" + "x" * 5_000_000 + "\nlast"})

    traceback = with_record({}, record)["dlx-dead-traceback"]

    assert len(traceback) == 30_000
    assert traceback.startswith("first\n")
    assert "\n[...]\n" in traceback
    assert traceback.endswith("\nlast")


def test_a_traceback_gives_way_to_the_messages_own_headers():
    record = DeadRecord(**{**as_dict(RECORD), "traceback": "x" * 30_000})

    letter = with_record({"argsrepr": "x" * 110_000}, record)

    assert 0 < len(letter["dlx-dead-traceback"]) < 10_000
    assert len(on_the_wire(letter)) <= 120_000


CELERYS = {"task": "shop.charge", "id": "7b1c", "argsrepr": "()", "eta": None, "retries": 3, "origin": "gen1@host"}


@pytest.mark.parametrize("room", range(0, 3_000, 7))
def test_in_a_full_frame_ours_makes_way_and_the_senders_stays(room):
    sent = {**CELERYS, "pad": "x" * 500}
    letter = with_record(with_failure(sent, FAILURE), RECORD)

    kept = trimmed(letter, room=room)

    assert len(on_the_wire(kept)) <= room or kept == {key: sent[key] for key in ("task", "id", "retries", "pad")}
    assert kept.items() <= letter.items()
    assert kept["pad"] == sent["pad"]
    if room >= size_of(sent) + 20:
        assert record_of(kept).reason == RECORD.reason
        assert record_of(kept).queue == RECORD.queue
        assert (record_of(kept).task, record_of(kept).task_id, record_of(kept).attempts) == ("shop.charge", "7b1c", 4)


def test_what_fits_stays_as_it_is():
    letter = with_record(with_failure(CELERYS, FAILURE), RECORD)

    assert trimmed(letter, room=size_of(letter)) == letter


FINITE = st.floats(allow_nan=False, allow_infinity=False)


@given(
    st.dictionaries(
        st.text(max_size=9),
        st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | FINITE | st.text() | st.binary(),
    )
)
def test_no_table_is_longer_than_we_say(headers):
    assert len(on_the_wire(headers)) <= size_of(headers)


def as_dict(record):
    return {name: getattr(record, name) for name in type(record).__slots__}


# --- the text of an error ---


class Unprintable(Exception):
    def __str__(self):
        raise RuntimeError


class NoText(Exception):
    def __str__(self):
        return 5  # noqa: PLE0307 - on purpose


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (OSError("gone"), "OSError: gone"),
        (ValueError(), "ValueError"),
        (KeyError("a"), "KeyError: 'a'"),
        (ValueError("one\ntwo\r\nthree"), "ValueError: one two three"),
        (ValueError(f"a{SURROGATE}b"), "ValueError: a?b"),
        (Unprintable(), "Unprintable: <unprintable>"),
        (NoText(), "NoText: <unprintable>"),
    ],
)
def test_an_error_is_described_in_one_line_that_any_header_can_hold(error, text):
    assert describe(error) == text


@given(st.text(st.characters()))
def test_no_text_of_an_error_breaks_a_header(text):
    described = describe(ValueError(text))

    assert len(described.splitlines()) == 1
    assert described.encode()


@given(st.text(st.characters()), st.integers(0, 60))
def test_cut_text_never_exceeds_its_size_and_is_valid_utf8(text, size):
    assert len(cut(text, size).encode()) <= size


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_text_that_fits_is_not_cut(text):
    assert cut(text, len(text.encode())) == text


@pytest.mark.parametrize(
    ("text", "size", "short"),
    [
        ("abcdef", 0, ""),
        ("abcdef", 3, "abc"),
        ("äöü", 3, "ä"),
        ("a" * 10 + "b" * 20, 22, "a" * 5 + "\n[...]\n" + "b" * 10),
        ("🐇" * 20, 40, "🐇" * 2 + "\n[...]\n" + "🐇" * 5),
        (SURROGATE, 10, "?"),
    ],
)
def test_a_text_is_cut_in_its_middle(text, size, short):
    assert cut(text, size) == short


# --- dead letters that the broker made ---


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("delivery_limit", Reason.CRASH_LOOP),
        ("maxlen", Reason.OVERFLOW),
        ("expired", Reason.EXPIRED),
        ("rejected", Reason.REJECTED),
        ("news of a later version", Reason.REJECTED),
        (None, Reason.REJECTED),
    ],
)
def test_what_the_broker_dead_lettered_itself_has_a_record_too(theirs, ours):
    headers = {
        "task": "shop.charge",
        "id": "7b1c",
        "retries": 2,
        "x-death": [
            {"queue": "orders", "reason": theirs, "time": datetime(2023, 11, 14, 22, 13, 20), "count": 1},  # noqa: DTZ001 - as py-amqp
            {"queue": "dlx.v1.wait.classic.000000001000", "reason": "expired", "count": 2},
        ],
    }

    assert record_of(headers) == DeadRecord(
        reason=ours,
        task="shop.charge",
        task_id="7b1c",
        queue="orders",
        dead_letter_key="orders",
        worker="",
        attempts=3,
        died_at_ms=1_700_000_000_000,
    )


@pytest.fixture
def far_from_utc(monkeypatch):
    monkeypatch.setenv("TZ", "Pacific/Auckland")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("far_from_utc")
@pytest.mark.parametrize(
    "at",
    [
        datetime(2023, 11, 14, 22, 13, 20, tzinfo=timezone.utc),
        datetime.fromtimestamp(1_700_000_000, timezone(timedelta(hours=5))),
    ],
)
def test_the_brokers_time_of_death_is_utc_wherever_the_worker_runs(at):
    headers = after_the_wire({"x-death": [{"queue": "orders", "reason": "rejected", "time": at}]})

    assert record_of(headers).died_at_ms == 1_700_000_000_000


@pytest.mark.parametrize(
    "garbage", [None, 7, "rejected", {}, [], [None], ["rejected"], [7], [[]], {"queue": "orders"}], ids=shown
)
def test_a_death_that_is_garbage_is_no_record(garbage):
    assert record_of({"x-death": garbage}) is None


def test_a_death_that_tells_nothing_is_still_a_death():
    record = record_of({"x-death": [{"time": "yesterday"}], "retries": "many"})

    assert record == DeadRecord(
        reason=Reason.REJECTED, task="", task_id="", queue="", dead_letter_key="", worker="", attempts=1, died_at_ms=0
    )


def test_the_brokers_word_goes_before_a_record():
    forged = replace(RECORD, queue="victim", dead_letter_key="victim", error="forged")

    record = record_of({**with_record({}, forged), **BROKER_HEADERS})

    assert (record.queue, record.dead_letter_key, record.reason, record.error) == (
        "orders",
        "orders",
        Reason.REJECTED,
        "",
    )


def test_a_message_that_is_no_dead_letter_has_no_record():
    assert record_of({"task": "shop.charge", "id": "7b1c"}) is None


# --- replay ---


def test_a_replay_starts_as_if_new_but_remembers():
    alive = with_failure({"id": "7b1c", "retries": 3, "x-custom": 1, "dlx-crashes": 2}, FAILURE)
    letter = {**with_record(alive, RECORD), **BROKER_HEADERS}

    replayed = for_replay(letter)

    assert replayed == {
        "id": "7b1c",
        "retries": 0,
        "x-custom": 1,
        "dlx-history": alive["dlx-history"],
        "dlx-replays": 1,
    }
    assert for_replay(replayed)["dlx-replays"] == 2


def test_the_deadline_counts_anew_after_a_replay():
    headers = for_replay(with_record(fail({}, [5]), RECORD))

    assert first_failed_at_ms(headers, now_ms=100) == 100


@pytest.mark.parametrize("replays", [None, "2", True, -1, [1]], ids=shown)
def test_a_number_of_replays_that_makes_no_sense_starts_at_one(replays):
    assert for_replay({"dlx-replays": replays})["dlx-replays"] == 1


# --- the message ---


def test_a_message_changes_its_headers_and_nothing_else():
    message = Message(
        body=b"[]",
        content_type="application/json",
        content_encoding="utf-8",
        headers={"id": "7b1c"},
        properties={"priority": 3},
        compression="gzip",
    )

    changed = message.with_headers({"id": "7b1c", "dlx-replays": 1})

    assert changed == Message(
        body=b"[]",
        content_type="application/json",
        content_encoding="utf-8",
        headers={"id": "7b1c", "dlx-replays": 1},
        properties={"priority": 3},
        compression="gzip",
    )
    assert isinstance(message.headers, Mapping)
    assert message.headers == {"id": "7b1c"}


def test_where_a_message_was_sent_is_written_only_if_it_was_not_sent_to_its_work_queue_by_name():
    assert with_address({"id": "1"}, exchange="", routing_key="orders", queue="orders") == {"id": "1"}
    sent = with_address({"id": "1"}, exchange="shop", routing_key="order.new", queue="orders")
    assert sent == {"id": "1", "dlx-exchange": "shop", "dlx-routing-key": "order.new"}
    assert address_of(sent, queue="orders") == ("shop", "order.new")
    assert with_address(sent, exchange="", routing_key="later", queue="later") == {"id": "1"}
    assert for_replay(sent) == {"id": "1", "retries": 0, "dlx-replays": 1}


@pytest.mark.parametrize(
    "forged", [{}, {"dlx-exchange": "shop"}, {"dlx-exchange": 1, "dlx-routing-key": []}, {"dlx-exchange": None}]
)
def test_a_message_without_a_sound_address_was_sent_to_its_work_queue_by_name(forged):
    assert address_of(forged, queue="orders") == ("", "orders")
