from datetime import timedelta
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import shown

from celery_dlx_retry.errors import InvalidDelay
from celery_dlx_retry.policy.reasons import Reason
from celery_dlx_retry.values.durations import format_duration, to_ms


@pytest.mark.parametrize(
    ("seconds", "milliseconds"),
    [
        (0, 0),
        (-0.0, 0),
        (1, 1000),
        (0.1, 100),
        (1.1, 1100),  # 1.1 * 1000 is 1100.0000000000002
        (2.3, 2300),
        (0.0001, 1),
        (1.0001, 1001),
        (5e-324, 1),
        (10**400, 10**403),
        (1e300, 10**303),
        (timedelta(minutes=1), 60_000),
        (timedelta(microseconds=1), 1),
        (timedelta(days=200_000, microseconds=1), 200_000 * 86_400_000 + 1),
    ],
)
def test_seconds_become_whole_milliseconds_rounded_up(seconds, milliseconds):
    assert to_ms(seconds, what="delay") == milliseconds


@pytest.mark.parametrize(
    "value",
    [
        True,
        float("nan"),
        float("inf"),
        -1,
        -0.0001,
        timedelta(microseconds=-1),
        "5",
        None,
        1j,
        [1],
    ],
    ids=shown,
)
def test_what_is_no_delay_is_refused_by_name(value):
    with pytest.raises(InvalidDelay, match=r"^Fixed\.delay is ") as caught:
        to_ms(value, what="Fixed.delay")

    assert caught.value.what == "Fixed.delay"
    assert caught.value.value is value


class OddlyPrinted(float):
    __slots__ = ()

    def __repr__(self):
        return f"np.float64({float(self)})"


def test_a_float_that_prints_itself_differently_is_still_a_float():
    assert to_ms(OddlyPrinted(1.1), what="delay") == 1100


@given(st.floats(min_value=0, allow_infinity=False) | st.integers(min_value=0))
def test_a_delay_is_never_early_and_less_than_a_millisecond_late(seconds):
    wanted = Fraction(repr(seconds)) * 1000

    assert wanted <= to_ms(seconds, what="delay") < wanted + 1


@given(st.timedeltas(min_value=timedelta()))
def test_a_timedelta_is_never_early_and_less_than_a_millisecond_late(seconds):
    delay = timedelta(milliseconds=1) * to_ms(seconds, what="delay") if seconds < timedelta.max else seconds

    assert timedelta() <= delay - seconds < timedelta(milliseconds=1)


@pytest.mark.parametrize("reason", Reason, ids=str)
def test_a_reason_is_its_text_however_it_is_printed(reason):
    assert str(reason) == f"{reason}" == "{}".format(reason) == reason.value == reason  # noqa: UP032
    assert reason.value == reason.name.lower().replace("_", "-")


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [
        (0, "0 s"),
        (90, "90 ms"),
        (5_001, "5.001 s"),
        (8_540, "8.54 s"),
        (60_000, "1 min"),
        (5_400_000, "1 h 30 min"),
        (86_400_000, "1 day"),
        (4_000 * 86_400_000, "4000 days"),
        (365 * 86_400_000 + 1, "365 days 0.001 s"),
    ],
)
def test_a_length_in_words_is_exact(milliseconds, text):
    assert format_duration(milliseconds) == text
