"""The header of traces: what we write is read again, and what a sender forged is ignored."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_dlx_retry.wire.dead_record import for_replay
from celery_dlx_retry.wire.headers import Failure, with_failure
from celery_dlx_retry.wire.trace_header import TRACE, TaskTrace, trace_of
from celery_dlx_retry.wire.trimmed_headers import trimmed

SPAN = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
OTHER = "00-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-00"
FAILURE = Failure(attempt=1, at_ms=1, error="E", delay_ms=5, worker="w")


@pytest.mark.parametrize(
    "trace",
    [
        TaskTrace(first=SPAN, previous=OTHER, published=SPAN),
        TaskTrace(first=SPAN, previous=SPAN),
        TaskTrace(published=OTHER),
    ],
)
def test_a_trace_is_read_as_it_was_written(trace):
    assert trace_of({TRACE: str(trace)}) == trace


@pytest.mark.parametrize(
    "value",
    [
        *(None, 5, b"00", [], {}, "", ",", ",,,", SPAN, f"{SPAN},{SPAN}", f"{SPAN},{SPAN},{SPAN},{SPAN}"),
        *(f" {SPAN},,", f"{SPAN},,\n", f"{SPAN.upper()},,", f"{SPAN[:-1]},,", f"01{SPAN[2:]},,", "," * 1_000_000),
        *(SPAN.replace("0af7651916cd43dd8448eb211c80319c", "0" * 32) + ",,", SPAN[:36] + "0" * 16 + "-01,,"),
        SPAN.replace("0af7", "\u0660af7") + ",,",
    ],
)
def test_a_header_that_we_did_not_write_is_ignored(value):
    assert not trace_of({TRACE: value})


@given(st.text(alphabet="0123456789abcdef-,\n ", max_size=200))
def test_what_is_read_is_a_trace_id_and_a_span_id(value):
    trace = trace_of({TRACE: value})

    for span in filter(None, (trace.first, trace.previous, trace.published)):
        version, trace_id, span_id, flags = span.split("-")
        assert (version, len(trace_id), len(span_id), len(flags)) == ("00", 32, 16, 2)
        assert int(trace_id, 16)
        assert int(span_id, 16)


def test_the_header_survives_a_retry_and_a_replay():
    headers = {TRACE: str(TaskTrace(first=SPAN))}

    assert with_failure(headers, FAILURE)[TRACE] == for_replay(headers)[TRACE] == headers[TRACE]


def test_the_header_goes_before_the_senders_headers_do_if_a_frame_is_full():
    headers = {"mine": "x" * 900, TRACE: str(TaskTrace(first=SPAN))}

    assert trimmed(headers, room=1_020) == {"mine": "x" * 900}
