"""How long the head of a lane is overdue, from counts alone."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from celery_dlx_retry.operations.lane_age import STATISTICS_MS, LaneAge

DELAY_MS = 60_000


def test_a_message_that_stays_is_overdue_after_its_delay():
    age = LaneAge(DELAY_MS)

    late = [age.add(now_ms=at, messages=1, published=1) for at in range(0, 120_001, 15_000)]

    assert late == [0] * 5 + [at - DELAY_MS - STATISTICS_MS for at in range(75_000, 120_001, 15_000)]


def test_a_lane_that_passes_its_messages_on_is_never_overdue():
    age = LaneAge(DELAY_MS)

    # One message a second, each leaves after its delay.
    late = {age.add(now_ms=at * 1000, messages=min(at, 60), published=at) for at in range(0, 1000, 7)}

    assert late == {0}


def test_new_messages_do_not_hide_one_that_stays():
    age = LaneAge(DELAY_MS)

    # Messages leave only from the head, so those behind it stay, too.
    late = [age.add(now_ms=at * 1000, messages=1 + at, published=1 + at) for at in range(0, 301, 15)]

    assert late[-1] == 300_000 - DELAY_MS - STATISTICS_MS


def test_a_broker_that_counts_from_zero_again_makes_no_old_message():
    age = LaneAge(DELAY_MS)
    age.add(now_ms=0, messages=5, published=1000)

    assert age.add(now_ms=600_000, messages=5, published=5) == 0


@given(
    arrivals=st.lists(st.integers(0, 400), max_size=60),
    gaps=st.lists(st.integers(1, 60), min_size=1, max_size=60),
    stuck_from=st.integers(0, 400),
)
def test_it_never_says_more_than_the_true_time(arrivals, gaps, stuck_from):
    """A lane whose broker stops to expire messages at some moment."""
    age, now = LaneAge(DELAY_MS), 0
    for gap in gaps:
        now += gap
        came = [at for at in arrivals if at <= now]
        there = [at for at in came if at + 60 > min(now, stuck_from)]
        true_s = max((now - at - 60 for at in there), default=0)

        assert age.add(now_ms=now * 1000, messages=len(there), published=len(came)) <= max(0, true_s) * 1000


def test_a_long_time_needs_little_memory():
    age = LaneAge(86_400_000)

    for at in range(20_000):
        age.add(now_ms=at * 15_000, messages=1, published=1)

    assert len(age._samples) <= 501
    assert age.add(now_ms=300_000_000, messages=1, published=1) == 300_000_000 - 86_400_000 - STATISTICS_MS
