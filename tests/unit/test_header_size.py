"""What AMQP cannot carry is found before anything is published, and nothing else is refused."""

from __future__ import annotations

from collections import OrderedDict

import pytest
from amqp import Message as RawMessage
from amqp.serialization import dumps
from hypothesis import given, settings
from hypothesis import strategies as st
from support import shown

from celery_dlx_retry.errors import Unpublishable
from celery_dlx_retry.wire.header_size import carried, check_properties, room_beside, size_of
from tests.unit.examples import many

FINITE = st.floats(allow_nan=False, allow_infinity=False)


def on_the_wire(headers):
    return dumps("F", [headers])


SCALARS = (
    st.sampled_from([None, True, 2**31, 2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 2**70, 1j, {1}, object(), range(3)])
    | st.sampled_from([bytearray(b"x"), memoryview(b"x"), frozenset(), b"x", "x", "\udc80", OrderedDict(a=1)])
    | FINITE
    | st.decimals()
    | st.datetimes()
)
KEYS = st.text(max_size=3) | st.sampled_from(
    ["k" * 255, "k" * 256, "ä" * 127, "ä" * 128, b"k", b"k" * 256, 5, (), None]
)
TABLES = st.dictionaries(
    KEYS, st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(KEYS, inner, max_size=2))
)


@given(TABLES)
@settings(max_examples=many(400))
def test_what_py_amqp_cannot_encode_is_unpublishable_and_nothing_else_is(headers):
    try:
        on_the_wire(headers)
    except Exception:  # noqa: BLE001 - py-amqp raises errors of many kinds
        with pytest.raises(Unpublishable):
            size_of(headers)
        assert len(on_the_wire(carried(headers))) <= size_of(carried(headers))
    else:
        assert size_of(headers)
        assert carried(headers) is headers


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_what_py_amqp_encodes_and_no_rabbitmq_reads_is_unpublishable(number):
    with pytest.raises(Unpublishable) as caught:
        size_of({"sound": 1, "outer": {"inner": [number]}})

    assert str(caught.value).startswith("The message cannot be published: the header 'outer' is not a finite number")


@pytest.mark.parametrize("name", ["priority", "delivery_mode", "timestamp", "reply_to", "correlation_id", "app_id"])
@pytest.mark.parametrize(
    "value",
    [
        None,
        1,
        255,
        256,
        -1,
        2**64 - 1,
        2**64,
        True,
        5.0,
        "high",
        "r" * 255,
        "r" * 256,
        "ä" * 128,
        b"r",
        b"r" * 256,
        {1},
    ],
    ids=shown,
)
def test_a_property_that_py_amqp_cannot_encode_is_unpublishable_and_no_other_is(name, value):
    try:
        RawMessage("", **{name: value})._serialize_properties()
    except Exception:  # noqa: BLE001 - py-amqp raises errors of many kinds
        with pytest.raises(Unpublishable):
            check_properties({name: value})
    else:
        check_properties({name: value})


def test_a_sentence_about_a_header_shows_no_value_of_it():
    with pytest.raises(Unpublishable) as caught:
        size_of({"token": {"secret"}})

    assert str(caught.value) == "The message cannot be published: the header 'token' is a set, which AMQP cannot carry."


def test_a_lone_surrogate_in_a_property_takes_the_three_bytes_that_py_amqp_writes():
    assert room_beside({"reply_to": "\ud800"}) == room_beside({"reply_to": "abc"})
