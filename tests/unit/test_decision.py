import copy
import pickle
import sys
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import shown

from celery_dlx_retry.errors import DeadLetter, InvalidDelay, InvalidPolicy, RetryIn
from celery_dlx_retry.policy.decision import Asked, Dead, LetFail, Wait, decide, decide_without_policy
from celery_dlx_retry.policy.jitter import FullJitter, ProportionalJitter
from celery_dlx_retry.policy.policies import (
    DEAD,
    LET_FAIL,
    MAX_DELAY_MS,
    Custom,
    Delays,
    Exponential,
    Fixed,
    Linear,
    On,
    Policy,
    Verdict,
    as_policy,
)
from celery_dlx_retry.policy.reasons import Reason
from celery_dlx_retry.policy.rule_retries import RuleRetry, rule_retries_of, with_rule_retry

EXHAUSTED, FAILED, REQUESTED = Dead(Reason.EXHAUSTED), Dead(Reason.FAILED), Dead(Reason.REQUESTED)
BOOM = ValueError("boom")


def decided(policy, error=BOOM, *, attempt=1, elapsed_ms=0, chance=0.5, **known):
    return decide(policy, error, attempt=attempt, elapsed_ms=elapsed_ms, chance=chance, now=1_800_000_000.0, **known)


def story_of(policy, *errors):
    """What is decided about these errors of one message, one after the other: the delays, and the end, if any."""
    headers, told = {}, []
    for attempt, error in enumerate(errors, start=1):
        decision = decided(policy, error, attempt=attempt, rule_retries=rule_retries_of(headers, retries=attempt - 1))
        if not isinstance(decision, Wait):
            return [*told, decision]
        headers = with_rule_retry(headers, decision.rule, retries=attempt - 1)
        told.append(decision.delay_ms)
    return told


def delays_of(policy, retries):
    return [policy.delay_ms(retry, BOOM) for retry in range(1, retries + 1)]


def is_locked(error):
    return "locked" in str(error)


def broken(*_):
    raise ZeroDivisionError("a bug in the user's function")


def squares(retry, _error):
    return retry**2


class Throttled(Exception):
    def __init__(self, retry_after):
        self.retry_after = retry_after


# Backoffs


@pytest.mark.parametrize(
    ("policy", "delays"),
    [
        (Fixed(1.5), [1500, 1500, 1500]),
        (Fixed(timedelta(minutes=1)), [60_000, 60_000]),
        (Fixed(0), [0, 0]),
        (Linear(2), [2000, 4000, 6000]),
        (Linear(1, step=0.5, limit=2), [1000, 1500, 2000, 2000]),
        (Linear(1, step=0), [1000, 1000]),
        (Exponential(1), [1000, 2000, 4000, 8000]),
        (Exponential(1, factor=10, limit=500), [1000, 10_000, 100_000, 500_000, 500_000]),
        (Exponential(1, factor=1.1), [1000, 1100, 1210, 1331, 1465]),
        (Exponential(1, factor=1), [1000, 1000]),
        (Exponential(12_345.678, factor=3), [12_345_678 * 3**each for each in range(10)]),
        (Exponential(0), [0, 0]),
        (Delays([1, 5, timedelta(minutes=1)]), [1000, 5000, 60_000, 60_000]),
        (Custom(squares), [1000, 4000, 9000]),
        (Custom(lambda retry, _: None if retry > 1 else 1), [1000, None]),
    ],
    ids=shown,
)
def test_each_backoff_keeps_its_schedule(policy, delays):
    assert delays_of(policy, len(delays)) == delays


@pytest.mark.parametrize("retry", [100_000, 10**30])
@pytest.mark.parametrize(
    "policy",
    [
        Exponential(1),
        Exponential(1, factor=1.001),
        Exponential(1, factor=10**400),
        Exponential(1e300),
        Linear(10**7),
        Linear(10**400),
        Fixed(10**400),
        Delays([10**400]),
        Custom(lambda *_: 10**400),
    ],
    ids=shown,
)
def test_a_backoff_without_limit_ends_at_ten_years(policy, retry):
    assert policy.delay_ms(retry, BOOM) == MAX_DELAY_MS == 10 * 365 * 86_400_000


@pytest.mark.parametrize("policy", [Fixed(timedelta(days=4000)), Delays([timedelta(days=4000)])], ids=shown)
def test_what_is_announced_is_what_was_written_so_that_too_much_can_be_told(policy):
    assert policy.known_delays_ms() == {4000 * 86_400_000}


def test_a_limit_is_reached_however_late_the_retry():
    assert Exponential(1, factor=1.5, limit=7.5).delay_ms(100_000, BOOM) == 7500


def test_an_exponential_of_nothing_is_nothing_however_late_the_retry():
    assert Exponential(0).delay_ms(10**30, BOOM) == 0


@given(
    start=st.floats(min_value=0, max_value=1e4),
    factor=st.floats(min_value=1, max_value=1e6),
    more=st.floats(min_value=0, max_value=1e5),
    retry=st.integers(min_value=1, max_value=200),
)
def test_delays_grow_from_the_start_and_never_beyond_the_limit(start, factor, more, retry):
    limit = start + more
    for policy in (Exponential(start, factor=factor, limit=limit), Linear(start, step=factor, limit=limit)):
        now, later = policy.delay_ms(retry, BOOM), policy.delay_ms(retry + 1, BOOM)

        assert policy.delay_ms(1, BOOM) <= now <= later <= Fixed(limit).delay_ms(1, BOOM)


def test_a_list_gives_as_many_retries_as_it_has_delays():
    policy = Delays([1, 5])

    assert [decided(policy, attempt=each) for each in (1, 2, 3)] == [Wait(1000), Wait(5000), EXHAUSTED]


def test_more_retries_than_delays_repeat_the_last_one():
    policy = Delays([1, 5], retries=3)

    assert [decided(policy, attempt=each) for each in (2, 3, 4)] == [Wait(5000), Wait(5000), EXHAUSTED]


# Retries and deadline


def test_last_retry_is_still_granted_and_the_next_failure_is_dead():
    policy = Fixed(1, retries=3)

    assert [decided(policy, attempt=each) for each in (1, 2, 3, 4)] == [Wait(1000)] * 3 + [EXHAUSTED]


def test_no_retries_is_dead_at_the_first_failure():
    assert decided(Fixed(1, retries=0)) == EXHAUSTED


def test_retries_none_is_for_ever():
    assert decided(Fixed(1, retries=None), attempt=10**9) == Wait(1000)


def test_a_retry_that_would_start_after_the_deadline_is_not_granted():
    policy = Fixed(1, deadline=10)

    assert decided(policy, elapsed_ms=9000) == Wait(1000)
    assert decided(policy, elapsed_ms=9001) == EXHAUSTED


def test_the_deadline_holds_for_what_the_error_asks():
    policy = Fixed(1, deadline=10)

    assert decided(policy, RetryIn(11)) == decided(policy, Throttled(11)) == EXHAUSTED


# Jitter


def test_jitter_spreads_the_backoff():
    policy = Exponential(1, jitter=FullJitter())

    assert decided(policy, attempt=3, chance=0.0) == Wait(0)
    assert decided(policy, attempt=3, chance=0.5) == Wait(2000)


def test_jitter_does_not_pass_ten_years():
    assert decided(Fixed(10**400, jitter=ProportionalJitter(1)), chance=0.99) == Wait(MAX_DELAY_MS)


def test_what_the_error_asks_is_not_jittered():
    policy = Fixed(1, jitter=FullJitter())

    assert decided(policy, RetryIn(7)) == decided(policy, Throttled(7)) == Wait(7000)


# Which errors


@pytest.mark.parametrize(
    ("errors", "retried", "dead"),
    [
        (Exception, BOOM, KeyboardInterrupt()),
        (OSError, ConnectionError(), BOOM),
        ((KeyError, OSError), TimeoutError(), BOOM),
        (is_locked, RuntimeError("locked"), RuntimeError("lost")),
    ],
)
def test_only_the_named_errors_are_retried_and_others_are_dead(errors, retried, dead):
    policy = Fixed(1, errors=errors)

    assert decided(policy, retried) == Wait(1000)
    assert decided(policy, dead) == FAILED


def test_an_error_that_is_not_retried_is_failed_and_not_exhausted():
    assert decided(Fixed(1, errors=OSError, retries=0), BOOM) == FAILED


def test_the_first_rule_that_matches_wins():
    policy = Fixed(1, rules=[On(ConnectionError, 2), On(OSError, 3), On(Exception, DEAD)])

    assert decided(policy, ConnectionResetError()) == Wait(2000)
    assert decided(policy, PermissionError()) == Wait(3000)
    assert decided(policy, BOOM) == FAILED


def test_no_rule_that_matches_leaves_it_to_the_policy():
    assert decided(Fixed(1, rules=[On(OSError, DEAD)]), BOOM) == Wait(1000)


def test_let_fail_leaves_it_to_celery():
    assert decided(Fixed(1, rules=[On(ValueError, LET_FAIL)])) == LetFail()


def test_a_rules_policy_brings_its_own_limits_and_the_outer_ones_do_not_hold():
    own = Linear(1, retries=5, deadline=100, jitter=FullJitter())
    policy = Fixed(60, retries=0, deadline=1, errors=OSError, rules=[On(ValueError, own)])

    assert decided(policy, elapsed_ms=97_500, rule_retries={"0": 4}) == Wait(2500)
    assert decided(policy, rule_retries={"0": 5}) == EXHAUSTED
    assert decided(policy, elapsed_ms=97_501, rule_retries={"0": 4}) == EXHAUSTED


TIMEOUT, RESET, DOWN = TimeoutError(), ConnectionResetError(), RuntimeError("down")


def test_a_rule_counts_its_own_retries_and_the_policy_those_of_no_rule():
    policy = Exponential(1, retries=3, rules=[On(TimeoutError, Linear(5, retries=2))])

    assert story_of(policy, DOWN, DOWN, DOWN, TIMEOUT) == [1000, 2000, 4000, 5000]
    assert story_of(policy, DOWN, TIMEOUT, DOWN, TIMEOUT, DOWN, DOWN) == [1000, 5000, 2000, 10_000, 4000, EXHAUSTED]
    assert story_of(policy, TIMEOUT, DOWN, TIMEOUT, TIMEOUT) == [5000, 1000, 10_000, EXHAUSTED]


def test_rules_do_not_share_their_retries_even_if_they_match_alike():
    policy = Fixed(1, rules=[On(lambda error: error is RESET, [2, 3]), On(lambda error: error is TIMEOUT, [4])])

    assert story_of(policy, RESET, TIMEOUT, RESET, TIMEOUT) == [2000, 4000, 3000, EXHAUSTED]


def test_a_rule_in_a_rule_counts_its_own_retries():
    policy = Fixed(1, retries=1, rules=[On(OSError, Delays([2, 3], rules=[On(TimeoutError, [4, 5])]))])

    assert story_of(policy, RESET, TIMEOUT, DOWN, TIMEOUT, RESET, DOWN) == [2000, 4000, 1000, 5000, 3000, EXHAUSTED]
    assert decided(policy, TIMEOUT).rule == RuleRetry(path="0.0", name="TimeoutError", retry=1)
    assert decided(policy, RESET, rule_retries={"0": 1}).rule == RuleRetry(path="0", name="OSError", retry=2)
    assert decided(policy, DOWN).rule is None


def test_where_the_retries_of_a_rule_are_not_known_it_counts_all_attempts():
    policy = Fixed(1, rules=[On(TimeoutError, Fixed(5, retries=3))])

    assert decided(policy, TIMEOUT, attempt=3, rule_retries=None) == Wait(5000)
    assert decided(policy, TIMEOUT, attempt=4, rule_retries=None) == EXHAUSTED


def test_forged_retries_of_rules_give_the_policy_no_retry_before_its_first():
    assert decided(Linear(1), DOWN, attempt=2, rule_retries={"7": 10**9}) == Wait(1000)


def test_without_a_policy_only_retry_in_is_retried_within_max_retries():
    assert decide_without_policy(BOOM, attempt=1, max_retries=3) == FAILED
    assert decide_without_policy(RetryIn(37), attempt=3, max_retries=3) == Wait(37_000)
    assert decide_without_policy(RetryIn(37), attempt=4, max_retries=3) == EXHAUSTED
    assert decide_without_policy(RetryIn(timedelta(hours=1)), attempt=9, max_retries=None) == Wait(3_600_000)


def test_a_task_that_asks_without_an_error_gets_the_delay_of_its_policy():
    assert decided(Fixed(7, errors=OSError, rules=[On(Exception, DEAD)]), Asked()) == Wait(7000)
    assert str(copy.copy(Asked())) == str(Asked())


def test_a_rules_policy_may_have_rules():
    policy = Fixed(1, rules=[On(OSError, Fixed(2, rules=[On(TimeoutError, 3)]))])

    assert decided(policy, TimeoutError()) == Wait(3000)


# What the error asks


def test_a_delay_that_the_error_names_goes_before_the_backoff():
    assert decided(Fixed(1), Throttled(37)) == Wait(37_000)


def test_a_server_may_not_ask_for_more_than_the_cap():
    assert decided(Fixed(1), Throttled(10**9)) == Wait(3_600_000)
    assert decided(Fixed(1, retry_after=timedelta(seconds=5)), Throttled(10**9)) == Wait(5000)


def test_retry_after_none_does_not_listen_to_servers_but_to_the_task():
    policy = Fixed(1, retry_after=None)

    assert decided(policy, Throttled(37)) == Wait(1000)
    assert decided(policy, RetryIn(37)) == Wait(37_000)


def test_the_cap_holds_for_the_tasks_own_word_too():
    assert decided(Fixed(1), RetryIn(7200)) == Wait(3_600_000)
    assert decided(Fixed(1, retry_after=7200), RetryIn(7200)) == Wait(7_200_000)
    assert decided(Fixed(1, retry_after=None), RetryIn(10**400)) == Wait(MAX_DELAY_MS)


def test_a_request_that_makes_no_sense_falls_back_to_the_backoff():
    assert decided(Fixed(1), Throttled("soon")) == decided(Fixed(1), Throttled(-1)) == Wait(1000)


@pytest.mark.parametrize(
    "policy", [Fixed(1, errors=OSError), Fixed(1, rules=[On(Exception, DEAD)]), Fixed(1, rules=[On(RetryIn, LET_FAIL)])]
)
def test_retry_in_is_retried_whatever_the_errors_but_counts_as_a_retry(policy):
    assert decided(policy, RetryIn(7), attempt=3) == Wait(7000)
    assert decided(policy, RetryIn(7), attempt=4) == EXHAUSTED


def test_retry_in_takes_the_limits_of_a_rule_with_a_policy():
    policy = Fixed(1, retries=0, rules=[On(RetryIn, Fixed(1, retries=2))])

    assert story_of(policy, RetryIn(7), RetryIn(8), RetryIn(9)) == [7000, 8000, EXHAUSTED]


@pytest.mark.parametrize("policy", [Fixed(1), Fixed(1, rules=[On(Exception, 5)]), Fixed(1, errors=is_locked)])
def test_dead_letter_is_dead_whatever_the_policy(policy):
    assert decided(policy, DeadLetter("no such customer")) == REQUESTED


# Faults in the user's functions


def test_a_predicate_that_raises_does_not_match_and_is_logged(caplog):
    policy = Fixed(1, rules=[On(broken, LET_FAIL), On(ValueError, 2)])

    assert decided(policy) == Wait(2000)
    assert "predicate failed" in caplog.text


def test_an_errors_predicate_that_raises_makes_the_message_dead():
    assert decided(Fixed(1, errors=broken)) == FAILED


@pytest.mark.parametrize("rubbish", [-1, "5", float("nan"), True, object()], ids=shown)
def test_a_function_that_returns_rubbish_makes_the_message_dead_and_is_told(rubbish):
    decision = decided(Custom(lambda *_: rubbish))

    assert decision == FAILED
    assert isinstance(decision.fault, InvalidDelay)


def test_a_function_that_raises_makes_the_message_dead():
    assert decided(Custom(broken)) == FAILED


@pytest.mark.parametrize(
    "function", [lambda: 3, lambda retry: retry, lambda a, b, c: (a, b, c), lambda *, retry: retry]
)
def test_a_function_that_cannot_be_asked_is_no_policy(function):
    with pytest.raises(InvalidPolicy, match=r"it must be a function of \(retry, error\)\.$"):
        Custom(function)


@pytest.mark.parametrize("function", [lambda *_: 3, lambda a, b=1, c=2: a + b + c, max, print])
def test_a_function_that_can_be_asked_is_one(function):
    assert as_policy(function).function is function


def test_a_function_that_returns_none_is_exhausted():
    assert decided(Custom(lambda *_: None)) == EXHAUSTED


@pytest.mark.parametrize("rubbish", [-1, 1.5, "5"])
def test_a_users_policy_that_returns_rubbish_makes_the_message_dead(rubbish):
    class Own(Policy):
        __slots__ = ()

        def delay_ms(self, _retry, _error):
            return rubbish

    assert decided(Own()) == FAILED
    assert Own().known_delays_ms() == frozenset()


class Hostile(Exception):
    def __str__(self):
        raise RuntimeError("not printable")

    def __getattr__(self, name):
        raise RuntimeError(name)


def test_an_error_that_cannot_be_looked_at_is_an_error_like_others(caplog):
    assert decided(Fixed(1), Hostile()) == Wait(1000)
    assert decided(Fixed(1, errors=is_locked), Hostile()) == FAILED
    assert "error=Hostile" in caplog.text


functions = st.sampled_from([squares, broken, lambda *_: None, lambda *_: "x"])
matches = st.sampled_from([Exception, OSError, (KeyError, ValueError), (), is_locked, broken])
common = {
    "retries": st.none() | st.integers(min_value=0, max_value=10),
    "jitter": st.sampled_from([None, FullJitter(), ProportionalJitter()]),
    "deadline": st.sampled_from([None, 0.5, timedelta(hours=1)]),
    "errors": matches,
    "retry_after": st.sampled_from([None, 0, 5]),
}
numbers = st.integers(min_value=0, max_value=10**20) | st.floats(min_value=0, max_value=1e9) | st.just(timedelta(1))
plain = st.one_of(
    st.builds(Fixed, numbers, **common),
    st.builds(Linear, numbers, step=st.none() | numbers, **common),
    st.builds(Exponential, numbers, factor=st.integers(1, 9) | st.floats(1, 9), **common),
    st.builds(Delays, st.lists(numbers, min_size=1, max_size=4), **common),
    st.builds(Custom, functions, **common),
)
rules = st.lists(st.builds(On, matches, plain | st.sampled_from(Verdict)), max_size=2)
policies = plain | st.builds(Fixed, numbers, rules=rules, **common) | st.builds(Exponential, numbers, rules=rules)
errors = st.one_of(
    st.sampled_from([BOOM, KeyError(), OSError(), SystemExit(), DeadLetter("x"), RuntimeError("locked")]),
    st.builds(RetryIn, st.floats(min_value=0, allow_infinity=False) | st.integers(min_value=0)),
    st.builds(Throttled, st.none() | st.floats() | st.integers() | st.text()),
)


@given(
    policies,
    errors,
    st.integers(1, 10**6),
    st.integers(0, 10**15),
    st.floats(min_value=0, max_value=1, exclude_max=True),
)
def test_every_failure_ends_in_a_decision(policy, error, attempt, elapsed_ms, chance):
    decision = decided(policy, error, attempt=attempt, elapsed_ms=elapsed_ms, chance=chance)

    assert isinstance(decision, (Wait, Dead, LetFail))
    if isinstance(decision, Wait):
        assert type(decision.delay_ms) is int
        assert 0 <= decision.delay_ms <= MAX_DELAY_MS


# Delays known in advance


@pytest.mark.parametrize(
    ("policy", "known"),
    [
        (Fixed(1), {1000}),
        (Fixed(1, retries=0), set()),
        (Linear(1, retries=3), {1000, 2000, 3000}),
        (Exponential(1, factor=10, limit=500, retries=9), {1000, 10_000, 100_000, 500_000}),
        (Exponential(1, retries=9, deadline=5), {1000, 2000, 4000}),
        (Delays([1, 5, 1]), {1000, 5000}),
        (Delays([1, 5, 9], retries=2), {1000, 5000}),
        (Fixed(1, jitter=FullJitter()), set()),
        (Custom(squares), set()),
        (Fixed(1, jitter=FullJitter(), rules=[On(OSError, 5), On(KeyError, DEAD)]), {5000}),
        (Custom(squares, rules=[On(OSError, Fixed(5, rules=[On(TimeoutError, [6, 7])]))]), {5000, 6000, 7000}),
    ],
    ids=shown,
)
def test_the_delays_that_can_be_known_are_known(policy, known):
    assert policy.known_delays_ms() == known


@pytest.mark.parametrize("retries", [None, 10**9])
def test_endless_retries_know_their_first_64_delays(retries):
    assert Linear(1, retries=retries).known_delays_ms() == {each * 1000 for each in range(1, 65)}


@given(plain.filter(lambda policy: policy.jitter is None and not isinstance(policy, Custom)), st.integers(1, 64))
def test_every_backoff_that_is_granted_was_known(policy, attempt):
    policy = replace(policy, errors=Exception)

    decision = decided(policy, attempt=attempt)

    # What is known is what was asked for: more than ten years are refused when a worker starts.
    known = {min(delay_ms, MAX_DELAY_MS) for delay_ms in policy.known_delays_ms()}
    assert decision == EXHAUSTED or decision.delay_ms in known


# Within a longest delay


def test_a_backoff_without_a_limit_ends_at_the_longest_delay():
    longest = 5_000
    known = {
        Exponential(1, retries=None): {1000, 2000, 4000, 5000},
        Linear(2, retries=None): {2000, 4000, 5000},
        Linear(2, rules=[On(OSError, Exponential(3, retries=9))]): {2000, 3000, 4000, 5000},
    }

    assert {policy: policy.within(longest).known_delays_ms() for policy in known} == known


@pytest.mark.parametrize(
    "policy", [Fixed(60), Delays([1, 60]), Exponential(1, limit=60, retries=9), Linear(60), Exponential(60)], ids=shown
)
def test_who_asks_for_more_than_the_longest_delay_is_not_cut_short(policy):
    assert max(policy.within(5_000).known_delays_ms()) == 60_000


@given(
    st.sampled_from([None, FullJitter(), ProportionalJitter(0.3), ProportionalJitter(1)]),
    st.integers(1_000, MAX_DELAY_MS),
    st.integers(1, 100_000),
    st.floats(0, 1, exclude_max=True),
)
def test_no_jitter_makes_it_longer_than_the_longest_delay(jitter, longest_ms, attempt, chance):
    policy = Exponential(0.5, retries=None, jitter=jitter).within(longest_ms)

    assert decided(policy, attempt=attempt, chance=chance).delay_ms <= longest_ms


# Values

NAMES = {**globals(), "datetime": sys.modules["datetime"]}

POLICIES = [
    Fixed(1),
    Linear(1, step=2, limit=timedelta(hours=1)),
    Exponential(1, factor=10, limit=500, retries=5),
    Delays([1, 2.5], retries=None),
    Custom(squares, retries=7),
    Fixed(1, rules=[On((OSError,), [1, 2]), On(is_locked, DEAD), On(KeyError, LET_FAIL)], errors=(OSError, KeyError)),
    Fixed(1, jitter=ProportionalJitter(0.2), deadline=60, retry_after=None),
]


@pytest.mark.parametrize("policy", POLICIES, ids=shown)
def test_a_policy_is_a_value(policy):
    twin = eval(repr(policy), NAMES)  # noqa: S307

    assert twin == policy
    assert twin is not policy
    assert hash(twin) == hash(policy)
    assert copy.deepcopy(policy) == policy
    with pytest.raises(AttributeError):
        policy.retries = 9
    with pytest.raises((AttributeError, TypeError)):
        policy.colour = "red"


@pytest.mark.parametrize("policy", [Fixed(1), Delays([1, 2]), Fixed(1, rules=[On(OSError, DEAD), On(KeyError, [1])])])
def test_a_policy_survives_pickle(policy):
    assert pickle.loads(pickle.dumps(policy)) == policy  # noqa: S301


def test_a_policy_prints_as_one_would_write_it():
    policy = Exponential(1, limit=500, factor=10, rules=[On(OSError, DEAD)], retries=5)

    assert repr(policy) == "Exponential(1, factor=10, limit=500, retries=5, rules=(On(OSError, DEAD),))"


@given(plain.filter(lambda policy: not isinstance(policy, Custom)))
def test_every_policy_of_named_parts_prints_as_python(policy):
    assert eval(repr(policy), NAMES) == policy  # noqa: S307


def test_policies_of_different_kinds_are_not_equal():
    assert len({Fixed(1), Linear(1), Exponential(1), Fixed(2)}) == 4


@pytest.mark.parametrize("verdict", Verdict)
def test_a_verdict_is_the_same_one_after_pickle(verdict):
    assert pickle.loads(pickle.dumps(verdict)) is verdict  # noqa: S301
    assert eval(repr(verdict)) is verdict  # noqa: S307


# as_policy


@pytest.mark.parametrize(
    ("value", "policy"),
    [
        (Linear(1), Linear(1)),
        (5, Fixed(5)),
        (0.5, Fixed(0.5)),
        (timedelta(1), Fixed(timedelta(1))),
        ([1, 2], Delays([1, 2])),
        ((1, 2), Delays([1, 2])),
        (squares, Custom(squares)),
    ],
    ids=shown,
)
def test_what_can_be_meant_only_one_way_is_a_policy(value, policy):
    assert as_policy(value) == policy
    assert On(OSError, value).then == policy


@pytest.mark.parametrize("value", [None, True, "5", {1, 2}, ValueError, Fixed, object(), [], -1, [True]], ids=shown)
def test_what_is_no_policy_is_refused(value):
    with pytest.raises((InvalidPolicy, InvalidDelay)):
        as_policy(value)


# Definitions that make no sense


@pytest.mark.parametrize(
    ("define", "sentence"),
    [
        (lambda: Fixed(1, retries=-1), r"Fixed\.retries is -1; it must be a whole number from 0 on"),
        (lambda: Fixed(1, retries=True), r"Fixed\.retries is True"),
        (lambda: Fixed(1, retries=1.0), r"Fixed\.retries is 1\.0"),
        (lambda: Delays([1], retries=-1), r"Delays\.retries is -1"),
        (lambda: Fixed(1, jitter=True), r"Fixed\.jitter is True; it must be FullJitter\(\)"),
        (lambda: Fixed(1, deadline=0), r"Fixed\.deadline is 0; it must be longer than 0"),
        (lambda: Exponential(1, factor=0.5), r"Exponential\.factor is 0\.5"),
        (lambda: Exponential(1, factor=float("nan")), r"Exponential\.factor is nan"),
        (lambda: Exponential(1, factor=float("inf")), r"Exponential\.factor is inf"),
        (lambda: Exponential(1, factor="2"), r"Exponential\.factor is '2'"),
        (lambda: Exponential(2, limit=1), r"Exponential\.limit is 1; it must be at least the start, 2"),
        (lambda: Linear(2, limit=1), r"Linear\.limit is 1"),
        (lambda: Delays([]), r"Delays\.delays is \[\]"),
        (lambda: Delays(5), r"Delays\.delays is 5"),
        (lambda: Delays("12"), r"Delays\.delays is '12'"),
        (lambda: Custom(5), r"Custom\.function is 5"),
        (lambda: Fixed(1, rules=[OSError]), r"Fixed\.rules is .* a sequence of On"),
        (lambda: Fixed(1, rules=On(OSError, 1)), r"Fixed\.rules is On\(OSError, Fixed\(1\)\)"),
        (lambda: Fixed(1, errors=int), r"Fixed\.errors is <class 'int'>; it must be an exception class"),
        (lambda: Fixed(1, errors=(OSError, int)), r"Fixed\.errors is "),
        (lambda: Fixed(1, errors=None), r"Fixed\.errors is None"),
        (lambda: On("OSError", 1), r"On\.match is 'OSError'"),
        (lambda: On(OSError, None), "policy is None; it must be a policy, seconds"),
    ],
)
def test_a_policy_that_makes_no_sense_fails_where_it_is_written(define, sentence):
    with pytest.raises(InvalidPolicy, match=f"^{sentence}"):
        define()


@pytest.mark.parametrize(
    ("define", "what"),
    [
        (lambda: Fixed(-1), "Fixed.delay"),
        (lambda: Fixed("1"), "Fixed.delay"),
        (lambda: Linear(-1), "Linear.start"),
        (lambda: Linear(1, step=-1), "Linear.step"),
        (lambda: Exponential(float("inf")), "Exponential.start"),
        (lambda: Exponential(1, limit=float("nan")), "Exponential.limit"),
        (lambda: Delays([1, -1]), "Delays.delays[1]"),
        (lambda: Fixed(1, deadline=-1), "Fixed.deadline"),
        (lambda: Fixed(1, retry_after=-1), "Fixed.retry_after"),
        (lambda: Fixed(1, retry_after=False), "Fixed.retry_after"),
    ],
)
def test_a_delay_that_makes_no_sense_fails_where_it_is_written(define, what):
    with pytest.raises(InvalidDelay) as caught:
        define()

    assert caught.value.what == what


def test_a_policy_without_backoff_cannot_be_made():
    with pytest.raises(TypeError, match="abstract"):
        Policy()
