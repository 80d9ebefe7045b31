"""A filter lets through what matches all that was given."""

import pytest

from celery_dlx_retry.deadletters.filter import LetterFilter
from tests.unit.letters import a_letter, a_message

LETTER = a_letter(
    task_id="1",
    task="shop.charge",
    error_type="KeyError",
    error="Order-1",
    traceback="in tasks.py",
    died_at_ms=5_000,
    message=a_message(headers={"argsrepr": "('customer-7',)"}),
)


@pytest.mark.parametrize(
    "chosen",
    [
        {},
        {"ids": frozenset(["1", "2"])},
        {"tasks": ("mail.*", "shop.*")},
        {"reasons": ("failed",)},
        {"exceptions": ("Key*",)},
        {"text": "order-1"},
        {"text": "TASKS.py"},
        {"text": "customer-7"},
        {"died_before_ms": 5_001},
        {"died_after_ms": 5_000},
        {"groups": (LETTER.fingerprint.group,)},
        {"tasks": ("shop.charge",), "exceptions": ("KeyError",), "died_after_ms": 1},
    ],
)
def test_what_matches_is_meant(chosen):
    assert LetterFilter(**chosen)(LETTER)
    assert LetterFilter(**chosen).is_empty == (not chosen)


@pytest.mark.parametrize(
    "chosen",
    [
        {"ids": frozenset(["11"])},
        {"tasks": ("shop",)},
        {"reasons": ("exhausted",)},
        {"exceptions": ("keyerror",)},
        {"text": "order-2"},
        {"died_before_ms": 5_000},
        {"died_after_ms": 5_001},
        {"groups": ("00000000",)},
        {"tasks": ("shop.charge",), "exceptions": ("ValueError",)},
    ],
)
def test_what_does_not_match_is_not(chosen):
    assert not LetterFilter(**chosen)(LETTER)


@pytest.mark.parametrize("chosen", [{"died_before_ms": 9_000}, {"died_after_ms": 0}])
def test_what_has_no_time_of_death_is_neither_old_nor_new(chosen):
    assert not LetterFilter(**chosen)(a_letter(died_at_ms=0))


@pytest.mark.parametrize(
    ("conditions", "words"),
    [
        ({"groups": ("3F2A9C01",)}, "eight digits"),
        ({"groups": ("3f2a",)}, "eight digits"),
        ({"exceptions": ("requests.exceptions.Timeout",)}, "without its module"),
        ({"exceptions": ("KeyError: 'x'",)}, "without its module"),
        ({"died_before_ms": 5, "died_after_ms": 5}, "before the one time"),
        ({"groups": ("3f2a9c01",), "exceptions": ("Timeout*", "[KV]*Error")}, ""),
        ({"died_before_ms": 6, "died_after_ms": 5}, ""),
        ({}, ""),
    ],
)
def test_a_filter_that_cannot_match_says_why(conditions, words):
    impossible = LetterFilter(**conditions).impossible

    assert words in impossible
    assert bool(impossible) is bool(words)
