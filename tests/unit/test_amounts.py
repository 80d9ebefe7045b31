"""Ages, rates and shares as operators type them, and a pace that is kept."""

from fractions import Fraction

import pytest

from celery_dlx_retry.values.amounts import Rate, age_ms, rate_per_second, share


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [("90s", 90_000), ("30m", 1_800_000), ("2h", 7_200_000), ("1.5d", 129_600_000), ("2w", 1_209_600_000), ("0s", 0)],
)
def test_an_age_is_a_number_with_a_unit(text, milliseconds):
    assert age_ms(text) == milliseconds


@pytest.mark.parametrize(("text", "rate"), [("50/s", 50), ("90/m", Fraction(3, 2)), ("1/h", Fraction(1, 3600))])
def test_a_rate_is_a_number_per_unit(text, rate):
    assert rate_per_second(text) == rate


@pytest.mark.parametrize(
    ("text", "part"), [("2%", Fraction(1, 50)), ("0%", 0), ("100 %", 1), ("0.5%", Fraction(1, 200))]
)
def test_a_share_is_a_percentage(text, part):
    assert share(text) == part


@pytest.mark.parametrize("text", ["", "2", "h", "-2h", "2y", "1e9s", "2 h", "9" * 99 + "s"])
def test_all_else_is_no_age(text):
    assert age_ms(text) is None


@pytest.mark.parametrize("text", ["", "50", "0/s", "/s", "50/d", "-1/s", "nan/s"])
def test_all_else_is_no_rate(text):
    assert rate_per_second(text) is None


@pytest.mark.parametrize("text", ["", "2", "101%", "-1%", "%"])
def test_all_else_is_no_share(text):
    assert share(text) is None


def moments(per_second, work_seconds):
    """When each step is made, if each takes so long."""
    pace, now, made = Rate(Fraction(per_second)), 100.0, []
    for seconds in work_seconds:
        now += pace.seconds_to_wait(now)
        made.append(now - 100)
        now += seconds
    return made


def test_a_pace_is_kept_whatever_each_step_takes():
    made = moments(50, [0.001, 0.019, 0.010] * 100)

    assert made == pytest.approx([number / 50 for number in range(300)])


def test_who_was_held_up_briefly_catches_up_and_who_was_held_up_long_does_not():
    briefly, long = moments(10, [0, 0.45, *[0] * 8]), moments(10, [0, 3.0, *[0] * 8])

    assert briefly[-1] == pytest.approx(0.9)
    assert long[2:4] == pytest.approx([3.1, 3.2])
