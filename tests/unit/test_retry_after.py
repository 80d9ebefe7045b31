import io
import urllib.error
from collections import UserDict
from datetime import datetime, timedelta, timezone
from email.message import Message
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import shown

from celery_dlx_retry.errors import DeadLetter, RetryIn
from celery_dlx_retry.policy.decision import hinted_delay_ms

NOW = datetime(2026, 10, 21, 7, 28, tzinfo=timezone.utc).timestamp()
IN_90_S = datetime(2026, 10, 21, 7, 29, 30, tzinfo=timezone.utc)


class Throttled(Exception):
    """As discord.py, slack and many SDKs raise it: the delay is an attribute."""

    def __init__(self, retry_after):
        self.retry_after = retry_after


class RequestsHTTPError(OSError):
    """The shape of requests.HTTPError and httpx.HTTPStatusError."""

    def __init__(self, headers):
        self.response = SimpleNamespace(status_code=429, headers=headers)


class AiohttpResponseError(Exception):
    """The shape of aiohttp.ClientResponseError."""

    def __init__(self, headers):
        self.status = 429
        self.headers = headers


def urllib_error(value):
    headers = Message()
    headers["Retry-After"] = value
    return urllib.error.HTTPError("http://localhost", 429, "Too Many Requests", headers, io.BytesIO())


def hint(error):
    return hinted_delay_ms(error, now=NOW)


@pytest.mark.parametrize(
    ("value", "delay_ms"),
    [
        (0, 0),
        (5, 5000),
        (1.1, 1100),
        (timedelta(seconds=90), 90_000),
        ("120", 120_000),
        (" 120 ", 120_000),
        ("1.5", 1500),
        ("Wed, 21 Oct 2026 07:29:30 GMT", 90_000),
        ("Wed, 21 Oct 2026 09:29:30 +0200", 90_000),
        ("Wednesday, 21-Oct-26 07:29:30 GMT", 90_000),
        ("Wed Oct 21 07:29:30 2026", 90_000),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0),
        (IN_90_S, 90_000),
        (IN_90_S.replace(tzinfo=None), 90_000),
        (IN_90_S - timedelta(days=1), 0),
        ("9" * 1000, int("9" * 1000) * 1000),
    ],
    ids=shown,
)
def test_an_attribute_names_the_delay_in_every_usual_form(value, delay_ms):
    assert hint(Throttled(value)) == delay_ms


GARBAGE = [
    None,
    True,
    -1,
    -0.5,
    float("nan"),
    float("inf"),
    timedelta(seconds=-1),
    "",
    "-5",
    "soon",
    "1_000",
    "inf",
    "nan",
    "1e3",
    "٣",
    "9" * 5000,
    "9" * 400 + ".5",
    "Wed, 99 Oct 2026 07:29:30 GMT",
    b"5",
    [5],
    {"seconds": 5},
    object(),
    lambda: 5,
    datetime.max.replace(tzinfo=timezone(timedelta(hours=-23))).astimezone,
]


@pytest.mark.parametrize("value", GARBAGE, ids=shown)
def test_garbage_is_no_hint_wherever_it_stands(value):
    errors = [Throttled(value), RequestsHTTPError({"Retry-After": value})]

    assert [hint(error) for error in errors] == [None, None]


@pytest.mark.parametrize("name", ["Retry-After", "retry-after", "RETRY-AFTER"])
@pytest.mark.parametrize("mapping", [dict, UserDict])
@pytest.mark.parametrize("shape", [RequestsHTTPError, AiohttpResponseError])
def test_a_header_is_found_in_any_case(shape, mapping, name):
    assert hint(shape(mapping({"Content-Type": "text/html", name: "7"}))) == 7000


@pytest.mark.parametrize(("value", "delay_ms"), [("7", 7000), ("Wed, 21 Oct 2026 07:29:30 GMT", 90_000)])
def test_an_urllib_error_names_the_delay(value, delay_ms):
    with urllib_error(value) as error:
        assert hint(error) == delay_ms


@pytest.mark.parametrize("headers", [None, [("Retry-After", "7")], "Retry-After: 7", {b"retry-after": "7"}, {}, 5])
@pytest.mark.parametrize("shape", [RequestsHTTPError, AiohttpResponseError])
def test_headers_that_are_no_headers_are_no_hint(shape, headers):
    assert hint(shape(headers)) is None


class Unreadable(Exception):
    @property
    def retry_after(self):
        raise RuntimeError("the request was never sent")

    response = retry_after

    headers = {"Retry-After": "3"}  # noqa: RUF012


def test_a_property_that_raises_does_not_hide_the_next_place():
    assert hint(Unreadable()) == 3000


def test_an_empty_attribute_does_not_hide_the_header():
    error = RequestsHTTPError({"Retry-After": "7"})
    error.retry_after = None

    assert hint(error) == 7000


def test_the_tasks_own_word_goes_first():
    error = RetryIn(37)
    error.headers = {"Retry-After": "3"}

    assert hint(error) == 37_000


@pytest.mark.parametrize("error", [ValueError("x"), KeyError(), SystemExit(1), DeadLetter("why"), OSError(2, "no")])
def test_an_error_that_names_no_delay_has_no_hint(error):
    assert hint(error) is None


anything = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.datetimes()


@given(anything | st.dictionaries(st.sampled_from(["Retry-After", "x"]) | st.text(), anything))
def test_nothing_that_an_error_carries_makes_it_raise(value):
    for error in (Throttled(value), RequestsHTTPError(value), AiohttpResponseError(value)):
        found = hint(error)

        assert found is None or (isinstance(found, int) and found >= 0)
