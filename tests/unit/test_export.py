"""A line of JSON holds a message of any kind, and gives it back as it was."""

import json
from datetime import datetime
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_dlx_retry.deadletters.export import FORMAT, from_line, to_line
from celery_dlx_retry.errors import InvalidExportLine
from tests.unit.letters import a_letter, a_message

TIMES = st.datetimes(min_value=datetime(1970, 1, 2), max_value=datetime(2100, 1, 1)).map(  # noqa: DTZ001 - py-amqp's
    lambda at: at.replace(microsecond=0)
)
NUMBERS = st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.decimals(-99, 99, places=3)
KEYS = st.text(max_size=9) | st.sampled_from(["$bytes", "$table"]) | st.binary(max_size=3)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text() | st.binary() | TIMES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
)


@given(
    body=st.binary(),
    headers=st.dictionaries(st.text(), VALUES, max_size=4),
    properties=st.fixed_dictionaries({"priority": st.integers(0, 255), "timestamp": st.integers(0, 2**63)}),
)
def test_there_and_back_it_is_the_same(body, headers, properties):
    message = a_message(body, headers=headers, properties=properties, content_type=None)

    queue, back = from_line(to_line(a_letter(message=message)), number=1)

    assert queue == "orders.dead"
    assert back == message
    assert types(back.headers) == types(headers)


def types(value):
    """1 and 1.0 and True are equal to Python, and not to AMQP."""
    if isinstance(value, dict):
        return [types(item) for item in value.values()]
    return [types(item) for item in value] if isinstance(value, list) else type(value)


def test_a_line_is_one_line_of_ascii():
    line = to_line(a_letter(message=a_message("ä\n\u2028".encode(), headers={"when": Decimal("1.5")})))

    assert line.isascii()
    assert "\n" not in line
    assert json.loads(line)["headers"] == {"when": {"$decimal": "1.5"}}


@pytest.mark.parametrize(
    "change",
    [
        {"format": "other"},
        {"body": None},
        {"body": {"$bytes": "!"}},
        {"body": "\ud800"},
        {"content_type": 7},
        {"content_encoding": []},
        {"headers": []},
        {"headers": {"x": {"$time": "soon"}}},
        {"headers": {"x": {"$time": 1e20}}},
        {"headers": {"x": {"$time": -1e20}}},
        {"headers": {"x": {"$decimal": "one"}}},
        {"headers": {"x": {"$table": [1]}}},
        {"properties": 1},
        {"queue": 7},
    ],
)
def test_what_is_no_export_is_named_by_its_line(change):
    line = json.dumps({**json.loads(to_line(a_letter())), **change})

    with pytest.raises(InvalidExportLine, match="Line 3 is not an exported dead letter"):
        from_line(line, number=3)


@pytest.mark.parametrize("line", ["", "{", "[]", "7", json.dumps({"format": FORMAT}), "[" * 100_000])
def test_what_is_no_object_is_no_export(line):
    with pytest.raises(InvalidExportLine):
        from_line(line, number=1)
