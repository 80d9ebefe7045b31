import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import shown

from celery_dlx_retry.errors import InvalidPolicy
from celery_dlx_retry.policy.jitter import FullJitter, ProportionalJitter

ALMOST_ONE = 1 - 2**-53
delays = st.integers(min_value=0, max_value=10**400)
chances = st.floats(min_value=0, max_value=1, exclude_max=True)
shares = st.floats(min_value=0, max_value=1, exclude_min=True)


@given(delays, chances)
def test_full_jitter_is_a_whole_number_between_nothing_and_the_delay(delay_ms, chance):
    jittered = FullJitter().apply(delay_ms, chance)

    assert isinstance(jittered, int)
    assert 0 <= jittered <= delay_ms


@given(delays, chances, shares)
def test_proportional_jitter_stays_within_its_share_and_is_never_negative(delay_ms, chance, share):
    jittered = ProportionalJitter(share).apply(delay_ms, chance)

    assert isinstance(jittered, int)
    assert max(0, delay_ms - delay_ms * share if delay_ms < 10**300 else 0) <= jittered + 1
    assert 0 <= jittered <= 2 * delay_ms


@pytest.mark.parametrize(
    ("jitter", "lowest", "highest"),
    [
        (FullJitter(), 0, 1000),
        (ProportionalJitter(), 900, 1100),
        (ProportionalJitter(0.3), 700, 1300),  # 0.3 in binary is a little less
        (ProportionalJitter(1), 0, 2000),
    ],
)
def test_both_ends_are_reached(jitter, lowest, highest):
    assert jitter.apply(1000, 0.0) == lowest
    assert jitter.apply(1000, ALMOST_ONE) == highest


@pytest.mark.parametrize("jitter", [FullJitter(), ProportionalJitter(0.5)])
def test_every_delay_is_equally_likely(jitter):
    steps = 3 * 101

    seen = [jitter.apply(100, step / steps) for step in range(steps)]

    assert max(seen.count(each) for each in set(seen)) <= 4


@pytest.mark.parametrize("jitter", [FullJitter(), ProportionalJitter()])
def test_no_delay_stays_no_delay(jitter):
    assert jitter.apply(0, ALMOST_ONE) == 0


@pytest.mark.parametrize("share", [0, -0.1, 1.1, float("nan"), float("inf"), True, "0.1", None], ids=shown)
def test_a_share_that_makes_no_sense_is_refused(share):
    with pytest.raises(InvalidPolicy, match=r"ProportionalJitter\.share is .* at most 1"):
        ProportionalJitter(share)


@pytest.mark.parametrize("jitter", [FullJitter(), ProportionalJitter(0.2)])
def test_jitters_are_values(jitter):
    assert pickle.loads(pickle.dumps(jitter)) == jitter  # noqa: S301
    assert eval(repr(jitter)) == jitter  # noqa: S307
    assert len({jitter, eval(repr(jitter))}) == 1  # noqa: S307
