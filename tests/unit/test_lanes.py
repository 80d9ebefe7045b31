import itertools

import pytest
from celery.utils.time import get_exponential_backoff_interval
from hypothesis import given
from hypothesis import strategies as st

from celery_dlx_retry.errors import DelayTooLong
from celery_dlx_retry.settings import Settings
from celery_dlx_retry.topology.lanes import backoff_delays_ms, grid, lane_ms

RATIO = Settings().grid
LIMIT_MS = Settings().max_delay_ms
NONE = frozenset()

ratios = st.floats(1.01, 2)
limits_ms = st.integers(1, LIMIT_MS)


def length_ms(delay_ms, *, exact=NONE, ratio=RATIO, limit_ms=LIMIT_MS):
    return lane_ms(delay_ms, exact=exact, ratio=ratio, limit_ms=limit_ms)


@given(st.integers(0, LIMIT_MS), st.frozensets(st.integers(0, 1_000)))
def test_a_lane_is_never_shorter_than_its_delay_and_is_known(delay_ms, exact):
    length = length_ms(delay_ms, exact=exact)

    assert length >= delay_ms
    assert length in grid(RATIO, LIMIT_MS) or length in exact


@given(st.integers(100, LIMIT_MS))
def test_a_lane_is_at_most_a_fifth_longer_than_its_delay(delay_ms):
    assert 10 * length_ms(delay_ms) <= 12 * delay_ms


def test_no_short_delay_is_early_or_more_than_a_fifth_late():
    assert [d for d in range(100, 5_000) if not 10 * d <= 10 * length_ms(d) <= 12 * d] == []


def test_the_delay_just_beyond_each_lane_is_at_most_a_fifth_late():
    steps = grid(RATIO, LIMIT_MS)

    assert [(last, step) for last, step in itertools.pairwise(steps) if 10 * step > 12 * (last + 1)] == []


@given(st.data(), ratios, limits_ms)
def test_no_grid_is_ever_early_or_later_than_its_ratio(data, ratio, limit_ms):
    delay_ms = data.draw(st.integers(0, limit_ms))

    length = length_ms(delay_ms, ratio=ratio, limit_ms=limit_ms)

    numerator, denominator = ratio.as_integer_ratio()
    assert delay_ms <= length <= limit_ms
    assert delay_ms < 100 or length * denominator <= delay_ms * numerator


@pytest.mark.parametrize(("delay_ms", "length"), [(0, 100), (1, 100), (100, 100), (101, 120), (37_000, 40_461)])
def test_these_delays_take_these_lanes(delay_ms, length):
    assert length_ms(delay_ms) == length


def test_the_default_grid_has_this_many_lanes():
    steps = grid(RATIO, LIMIT_MS)

    assert len(steps) == 109
    assert steps[:4] == (100, 120, 144, 172)
    assert steps[-1] == LIMIT_MS


def test_even_ten_years_have_fewer_than_250_lanes():
    assert len(grid(RATIO, 10 * LIMIT_MS)) < 250


@given(ratios, limits_ms)
def test_a_grid_grows_strictly_from_at_most_100_ms_to_its_limit(ratio, limit_ms):
    steps = grid(ratio, limit_ms)

    assert all(last < step for last, step in itertools.pairwise(steps))
    assert steps[0] == min(100, limit_ms)
    assert steps[-1] == limit_ms


def test_the_limit_itself_is_allowed_and_one_more_is_not():
    assert length_ms(5_000, limit_ms=5_000) == 5_000

    with pytest.raises(DelayTooLong) as caught:
        length_ms(5_001, limit_ms=5_000)

    assert str(caught.value) == (
        "A retry asks to wait 5.001 s; dlx_max_delay allows 5 s. "
        "Ask for less, or raise dlx_max_delay and restart the workers."
    )


def test_an_announced_delay_beyond_the_limit_is_too_long_all_the_same():
    with pytest.raises(DelayTooLong):
        length_ms(5_001, exact=frozenset({5_001}), limit_ms=5_000)


@given(st.integers(0, LIMIT_MS))
def test_an_announced_delay_is_taken_as_it_is(delay_ms):
    assert length_ms(delay_ms, exact=frozenset({delay_ms})) == delay_ms


def test_an_announced_delay_does_not_attract_others():
    assert length_ms(101, exact=frozenset({102})) == 120


@given(
    factor=st.one_of(st.integers(0, 10_000), st.floats(0, 10_000)),
    maximum=st.integers(-5, 10**7),
    retries=st.integers(0, 40),
)
def test_backoff_delays_are_celerys_own(factor, maximum, retries):
    # As celery.app.autoretry calls it.
    seconds = {
        get_exponential_backoff_interval(
            factor=int(max(1.0, factor)), retries=retry, maximum=maximum, full_jitter=False
        )
        for retry in range(retries)
    }

    assert backoff_delays_ms(factor=factor, maximum=maximum, retries=retries) == {each * 1000 for each in seconds}


def test_backoff_without_an_end_is_foreseen_up_to_its_maximum():
    assert backoff_delays_ms(factor=1, maximum=600, retries=None) == {
        seconds * 1000 for seconds in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 600)
    }


@pytest.mark.parametrize("retries", [None, 10**9])
def test_backoff_delays_are_bounded_whatever_the_number_of_retries(retries):
    assert len(backoff_delays_ms(factor=1, maximum=10**30, retries=retries)) == 64
