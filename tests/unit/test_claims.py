"""What a test may claim of its records, and what it is told when that is not so."""

from __future__ import annotations

from dataclasses import asdict
from datetime import timedelta

import pytest

from celery_dlx_retry.testing.assertions import Subject, are_settled, story, wrong_deaths, wrong_delays, wrong_successes
from celery_dlx_retry.testing.records import Record, RecordFile

ID = "6f44607b-fec2-4443-ba01-a6af7d4259e6"


def of(event, attempt=1, **facts):
    return Record(**{"event": event, "task": "shop.charge", "task_id": ID, "attempt": attempt, **facts})


RETRIED_TWICE = [
    of("sent"),
    of("retried", 1, delay_ms=1000, error="OSError: down"),
    of("retried", 2, delay_ms=1500, error="OSError: down"),
    of("dead", 3, reason="exhausted", error="OSError: down"),
    of("ended", 3, reason="FAILURE", error="OSError: down"),
]


def messages(records, what="shop.charge"):
    return Subject(what).messages(records)


@pytest.mark.parametrize(
    "delays",
    [
        [1, 1.5],
        (1, timedelta(seconds=1.5)),
        [1, pytest.approx(1.4, abs=0.2)],
        pytest.approx([1, 1.5]),
    ],
    ids=str,
)
def test_delays_are_seconds_a_timedelta_or_about(delays):
    assert wrong_delays(messages(RETRIED_TWICE), delays) == ""


def test_other_delays_are_told_with_what_was_expected():
    assert wrong_delays(messages(RETRIED_TWICE), [1]) == "Message 6f44607b was retried after 1 s, 1.5 s; expected 1 s."
    assert wrong_delays(messages(RETRIED_TWICE[:1]), [1]).endswith("was retried after no wait; expected 1 s.")


def test_another_reason_is_told_and_so_is_none():
    dead, alive = messages(RETRIED_TWICE), messages(RETRIED_TWICE[:3])

    assert wrong_deaths(dead, "exhausted") == wrong_deaths(dead, None) == ""
    assert wrong_deaths(dead, "failed") == (
        "Message 6f44607b is a dead letter, reason exhausted; expected a dead letter, reason failed."
    )
    assert wrong_deaths(alive, None) == "Message 6f44607b is no dead letter; expected a dead letter."


def test_a_success_is_no_dead_letter_and_no_other_end():
    retried = RETRIED_TWICE[:3]

    assert wrong_successes(messages([*retried, of("ended", 3, reason="SUCCESS")])) == ""
    assert wrong_successes(messages(RETRIED_TWICE)) == (
        "Message 6f44607b is a dead letter, reason exhausted; expected success."
    )
    for state in ("FAILURE", "REVOKED", "IGNORED"):
        ended = messages([*retried, of("ended", 3, reason=state)])
        assert wrong_successes(ended) == f"Message 6f44607b ended as {state}; expected success."
    assert wrong_successes(messages([of("called"), of("retried", delay_ms=1)])) == (
        "Message 6f44607b has come to no end; expected success."
    ), "with task_eager_propagates"


def test_the_story_is_in_the_order_of_the_attempts_whatever_the_order_of_the_records():
    assert story(messages(RETRIED_TWICE[::-1])).splitlines() == [
        "  shop.charge 6f44607b sent",
        "  shop.charge 6f44607b attempt 1: OSError: down -> retried after 1 s",
        "  shop.charge 6f44607b attempt 2: OSError: down -> retried after 1.5 s",
        "  shop.charge 6f44607b attempt 3: OSError: down -> dead letter, reason exhausted",
        "  shop.charge 6f44607b attempt 3: OSError: down -> FAILURE",
    ]


def test_a_message_is_settled_when_its_end_and_every_retry_before_it_are_recorded():
    for count in range(1, 4):
        assert not are_settled(messages(RETRIED_TWICE[:count]))
    assert not are_settled(messages([*RETRIED_TWICE[:2], RETRIED_TWICE[3]])), "the second retry is not recorded yet"
    assert are_settled(messages(RETRIED_TWICE))
    assert are_settled(messages([of("called"), of("retried", delay_ms=1)])), "nobody else will write more of it"


def test_what_an_earlier_test_left_in_a_queue_is_no_message_of_this_test():
    assert messages(RETRIED_TWICE[1:]) == {}


def test_a_claim_is_about_a_task_by_name_a_result_or_all():
    other = of("sent", task_id="other")
    records = [*RETRIED_TWICE, other, of("sent", task="shop.mail", task_id="mail")]

    class Result:
        id = "other"

    class Task:
        name = "shop.mail"

    assert set(messages(records)) == {ID, "other"}
    assert set(messages(records, Task())) == {"mail"}
    assert messages(records, Result()) == {"other": [other]}
    assert set(messages(records, None)) == {ID, "other", "mail"}
    assert [str(Subject(what)) for what in ("shop.charge", Result(), None)] == [
        "shop.charge",
        "the message other",
        "any task",
    ]


def test_half_a_line_is_not_read_yet(tmp_path):
    file = RecordFile(tmp_path / "records")
    file.add(**asdict(RETRIED_TWICE[0]))
    with file.path.open("a") as out:
        out.write('{"event": "re')

    assert file.read() == RETRIED_TWICE[:1]
