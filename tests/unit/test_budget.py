import copy
import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from fractions import Fraction
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import shown

from celery_dlx_retry.app.per_process import own
from celery_dlx_retry.errors import ConfigurationError, InvalidDelay, InvalidPolicy
from celery_dlx_retry.policy.budget import Account, Budget, as_budget, over_budget
from celery_dlx_retry.policy.decision import Dead, Wait, decide
from celery_dlx_retry.policy.policies import DEAD, LET_FAIL, Fixed
from celery_dlx_retry.policy.reasons import Reason
from celery_dlx_retry.worker.process_budget import ProcessBudget

DEAD_OF_IT = Dead(Reason.BUDGET)
MINUTE_MS = 60_000


def paid(account, times, *, now_ms=0):
    """How many of so many retries are paid for, and the account after them."""
    count = 0
    for _ in range(times):
        account, is_paid = account.after_retry(now_ms=now_ms)
        count += is_paid
    return count, account


def used(account, times, *, now_ms=0):
    for _ in range(times):
        account = account.after_first_attempt(now_ms=now_ms)
    return account


def empty(budget):
    return Account(budget=budget, balance=Fraction(0), at_ms=0)


def test_an_account_starts_with_its_reserve_and_no_more():
    count, _ = paid(Budget(0.2, reserve=3).open(now_ms=0), 10)

    assert count == 3


@pytest.mark.parametrize(
    ("share", "first_attempts", "retries"),
    [(0.2, 4, 0), (0.2, 5, 1), (0.1, 9, 0), (0.1, 10, 1), (0.3, 10, 3), (1, 2, 2), (2.5, 2, 5), (0.001, 999, 0)],
)
def test_first_attempts_pay_for_their_share_exactly(share, first_attempts, retries):
    account = used(empty(Budget(share, reserve=10)), first_attempts)

    assert paid(account, 100)[0] == retries


def test_no_more_is_saved_up_than_the_reserve():
    account = used(Budget(1, reserve=4).open(now_ms=0), 1_000)

    assert paid(account, 1_000)[0] == 4


def test_so_many_a_minute_come_in_by_themselves():
    budget = Budget(per_minute=6, reserve=100)

    assert paid(empty(budget), 9, now_ms=9_999)[0] == 0
    assert paid(empty(budget), 9, now_ms=10_000)[0] == 1
    assert paid(empty(budget), 9, now_ms=MINUTE_MS)[0] == 6


def test_first_attempts_pay_nothing_into_a_budget_per_minute():
    assert paid(used(empty(Budget(per_minute=6)), 1_000), 9)[0] == 0


def test_with_both_both_pay():
    account = used(empty(Budget(0.5, per_minute=60)), 4)

    assert paid(account, 9, now_ms=1_000)[0] == 3


def test_a_retry_that_was_not_made_is_paid_back():
    _, account = paid(Budget(0.2, reserve=1).open(now_ms=0), 1)

    assert paid(account, 1)[0] == 0
    assert paid(account.after_refund(), 2)[0] == 1
    assert account.after_refund().after_refund() == account.after_refund()


def test_what_is_left_is_a_part_of_the_reserve_and_in_full_tenths():
    account = Budget(0.2, reserve=4).open(now_ms=0)
    assert (account.remaining, account.tenths) == (1.0, 10)

    drawn, _ = account.after_retry(now_ms=0)

    assert (drawn.remaining, drawn.tenths) == (0.75, 7)
    assert paid(drawn, 3)[1].tenths == 0


def test_a_clock_that_goes_back_costs_nothing():
    account = Budget(per_minute=60, reserve=1).open(now_ms=5_000)

    _, account = paid(account, 1, now_ms=1_000)

    assert account.at_ms == 5_000
    assert paid(account, 9, now_ms=6_000)[0] == 1


budgets = st.builds(
    Budget,
    st.floats(0.001, 5),
    per_minute=st.none() | st.floats(0.01, 10_000),
    reserve=st.integers(1, 50),
)
steps = st.lists(st.tuples(st.sampled_from(["first attempt", "retry"]), st.integers(0, 5_000)), max_size=80)


@given(budgets, steps)
def test_there_are_never_more_retries_than_were_paid_for(budget, steps):
    account = budget.open(now_ms=0)
    now_ms = first_attempts = retries = 0

    for step, later_ms in steps:
        now_ms += later_ms
        if step == "retry":
            account, is_paid = account.after_retry(now_ms=now_ms)
            retries += is_paid
        else:
            account = account.after_first_attempt(now_ms=now_ms)
            first_attempts += 1
        assert 0 <= account.balance <= budget.reserve

    income = Fraction(repr(budget.share)) * first_attempts
    income += Fraction(repr(budget.per_minute or 0)) * now_ms / MINUTE_MS
    assert retries <= budget.reserve + income


@pytest.mark.parametrize(
    ("budget", "wait", "decision"),
    [
        (None, Wait(100), DEAD_OF_IT),
        (Budget(0.2), Wait(100), DEAD_OF_IT),
        (Budget(0.2, over=60), Wait(100), Wait(60_000)),
        (Budget(0.2, over=timedelta(minutes=1)), Wait(100), Wait(60_000)),
        (Budget(0.2, over=60), Wait(90_000), Wait(90_000)),
        (Budget(0.2, over=60), Wait(100, 60_000), Wait(60_000)),
        (Budget(0.2, over=60), Wait(100, 59_999), DEAD_OF_IT),
    ],
    ids=shown,
)
def test_beyond_a_budget_a_retry_is_dead_or_waits_longer_and_never_past_its_deadline(budget, wait, decision):
    assert over_budget(budget, wait) == decision


def test_a_policy_tells_how_long_a_wait_may_be_made():
    def waits(policy):
        return decide(policy, OSError(), attempt=1, elapsed_ms=3_000, chance=0.5, now=1_800_000_000.0)

    assert waits(Fixed(1, deadline=10)).latest_ms == 7_000
    assert waits(Fixed(1)).latest_ms is None
    assert waits(Fixed(1, deadline=4)) == Wait(1_000)


@pytest.mark.parametrize(
    ("budget", "written"),
    [
        (Budget(0.2), "Budget(0.2)"),
        (Budget(per_minute=60), "Budget(per_minute=60)"),
        (Budget(0.1, per_minute=6, reserve=3, over=60), "Budget(0.1, per_minute=6, reserve=3, over=60)"),
    ],
)
def test_a_budget_prints_as_one_writes_it(budget, written):
    assert repr(budget) == written


@pytest.mark.parametrize("budget", [Budget(0.2), Budget(0.2, over=60), Budget(per_minute=1)], ids=shown)
@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda it: pickle.loads(pickle.dumps(it))])  # noqa: S301
def test_a_budget_is_a_value(budget, duplicate):
    assert duplicate(budget) == budget
    assert hash(duplicate(budget)) == hash(budget)
    with pytest.raises(AttributeError):
        budget.share = 1


def test_the_wait_beyond_a_budget_is_announced():
    assert Budget(0.2).known_delays_ms() == frozenset()
    assert Budget(0.2, over=1.5).known_delays_ms() == {1_500}


def test_a_number_is_a_share():
    assert as_budget(0.2) == Budget(0.2)
    assert as_budget(Budget(per_minute=1)) == Budget(per_minute=1)


NUMBER = "a number above 0, or None"
OVER = "DEAD, or above 0 and up to ten years"


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({}, "Budget.share is None; it must be a number above 0, unless you set per_minute."),
        ({"share": 0}, f"Budget.share is 0; it must be {NUMBER}."),
        ({"share": -1}, f"Budget.share is -1; it must be {NUMBER}."),
        ({"share": float("nan")}, f"Budget.share is nan; it must be {NUMBER}."),
        ({"share": True}, f"Budget.share is True; it must be {NUMBER}."),
        ({"share": "20%"}, f"Budget.share is '20%'; it must be {NUMBER}."),
        ({"per_minute": 0}, f"Budget.per_minute is 0; it must be {NUMBER}."),
        ({"share": 1, "per_minute": float("inf")}, f"Budget.per_minute is inf; it must be {NUMBER}."),
        ({"share": 1, "reserve": 0}, "Budget.reserve is 0; it must be a whole number from 1 on."),
        ({"share": 1, "reserve": 1.5}, "Budget.reserve is 1.5; it must be a whole number from 1 on."),
        ({"share": 1, "over": 0}, f"Budget.over is 0; it must be {OVER}."),
        ({"share": 1, "over": timedelta(days=3_651)}, None),
    ],
    ids=shown,
)
def test_a_budget_that_makes_no_sense_fails_where_it_is_written(values, sentence):
    with pytest.raises(InvalidPolicy) as caught:
        Budget(**values)

    assert sentence in {None, str(caught.value)}


@pytest.mark.parametrize("over", [LET_FAIL, "dead", -1, None])
def test_what_is_beyond_is_dead_or_waits(over):
    with pytest.raises(InvalidDelay, match=r"^Budget.over is "):
        Budget(0.2, over=over)

    assert Budget(0.2).over is DEAD


@pytest.mark.parametrize("value", ["0.2", True, float("nan"), [0.2], 0, -1], ids=shown)
def test_what_is_no_budget_is_refused(value):
    with pytest.raises(ConfigurationError):
        as_budget(value)


def test_all_threads_of_a_process_draw_on_one_account():
    purse = ProcessBudget(Budget(0.001, reserve=500))

    with ThreadPoolExecutor(8) as threads:
        granted = list(threads.map(lambda _: purse.draw(), range(4_000)))

    assert sum(granted) == 500


def test_a_process_keeps_what_it_has_and_a_forked_one_starts_anew(monkeypatch):
    app = SimpleNamespace()
    mine = own(app, object, "purse", "charge")

    assert own(app, object, "purse", "charge") is mine
    assert own(app, object, "purse", "ship") is not mine
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert own(app, object, "purse", "charge") is not mine
