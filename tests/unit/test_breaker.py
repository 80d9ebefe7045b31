import pickle
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import shown

from celery_dlx_retry.errors import InvalidDelay, InvalidPolicy
from celery_dlx_retry.policy.breaker import Breaker
from celery_dlx_retry.policy.circuit import Circuit, Outcome, outcome_of
from celery_dlx_retry.policy.decision import Dead, LetFail, Wait
from celery_dlx_retry.policy.reasons import Reason

EVERY_MS = 1_000
BREAKER = Breaker(3, probe_every=1)
SUCCESS, FAILURE, NEITHER = Outcome.SUCCESS, Outcome.FAILURE, Outcome.NEITHER


class Process:
    """A circuit and a clock."""

    def __init__(self, breaker=BREAKER):
        self.circuit, self.now_ms = Circuit(breaker=breaker), 0

    def ask(self):
        self.circuit, may_run = self.circuit.admit(now_ms=self.now_ms)
        return may_run

    def tell(self, outcome):
        self.circuit = self.circuit.record(outcome, now_ms=self.now_ms)

    def run(self, outcome):
        if not self.ask():
            return False
        self.tell(outcome)
        return True

    def runs_of(self, messages, outcome=SUCCESS):
        """How many of so many messages are run, one after the other, now."""
        return sum(self.run(outcome) for _ in range(messages))

    def wait(self, ms=EVERY_MS):
        self.now_ms += ms


@pytest.fixture
def closed():
    return Process()


@pytest.fixture
def opened(closed):
    assert closed.runs_of(10, FAILURE) == BREAKER.after
    return closed


def test_a_new_one_is_closed_and_lets_everything_run(closed):
    assert closed.runs_of(1_000) == 1_000


def test_so_many_failures_in_a_row_open_it_and_then_nothing_runs(opened):
    assert opened.runs_of(1_000) == 0


def test_a_success_between_two_failures_begins_the_row_anew(closed):
    for _ in range(10):
        assert closed.runs_of(BREAKER.after - 1, FAILURE) == BREAKER.after - 1
        assert closed.run(SUCCESS)


def test_what_is_neither_neither_opens_it_nor_begins_the_row_anew(closed):
    assert closed.runs_of(100, NEITHER) == 100
    assert closed.runs_of(BREAKER.after - 1, FAILURE) == BREAKER.after - 1
    assert closed.run(NEITHER)
    assert closed.runs_of(10, FAILURE) == 1


def test_open_it_lets_one_probe_through_per_interval(opened):
    opened.wait(EVERY_MS - 1)
    assert opened.runs_of(10, FAILURE) == 0

    for _ in range(20):
        opened.wait()
        assert opened.runs_of(10, FAILURE) == 1


def test_a_probe_that_hangs_does_not_keep_the_next_one_from_trying(opened):
    opened.wait()
    assert [opened.ask() for _ in range(3)] == [True, False, False]

    opened.wait()

    assert [opened.ask() for _ in range(3)] == [True, False, False]


def test_a_probe_that_says_nothing_leaves_it_open(opened):
    opened.wait()
    assert opened.runs_of(10, NEITHER) == 1

    assert opened.runs_of(10) == 0


def test_after_a_success_the_flow_returns_doubling_until_nobody_is_held_back(opened):
    opened.wait()
    assert opened.run(SUCCESS)

    runs = []
    for _ in range(7):
        quarters = []
        for _ in range(4):
            quarters.append(opened.runs_of(5))
            opened.wait(EVERY_MS // 4)
        runs.append(quarters)

    assert runs[:4] == [[1, 0, 1, 0], [1, 1, 1, 1], [2, 2, 2, 2], [4, 4, 4, 4]]
    assert runs[4:] == [[5, 5, 5, 5]] * 3
    assert opened.circuit == Circuit(breaker=BREAKER)


def test_messages_that_come_back_together_return_too_two_intervals_later(opened):
    opened.wait()
    assert opened.run(SUCCESS)

    runs = []
    for _ in range(8):
        runs.append(opened.runs_of(20))
        opened.wait()

    assert runs == [1, 1, 2, 4, 8, 16, 20, 20]


def test_after_a_success_and_a_quiet_interval_it_is_closed(opened):
    opened.wait()
    assert opened.run(SUCCESS)

    opened.wait()

    assert opened.runs_of(1_000) == 1_000


@pytest.mark.parametrize("intervals", [0, 1, 2, 3])
def test_one_failure_while_the_flow_returns_opens_it_again(opened, intervals):
    opened.wait()
    assert opened.run(SUCCESS)
    for _ in range(intervals):
        opened.runs_of(20)
        opened.wait()

    assert opened.run(FAILURE)

    assert opened.runs_of(20) == 0
    opened.wait()
    assert opened.runs_of(20, FAILURE) == 1


def test_the_flow_does_not_grow_while_nothing_is_heard_of_those_that_run(opened):
    opened.wait()
    assert opened.run(SUCCESS)

    for _ in range(3):
        assert [opened.ask() for _ in range(4)] == [True, False, False, False]
        opened.wait(EVERY_MS // 2)
        assert [opened.ask() for _ in range(4)] == [True, False, False, False]
        opened.wait(EVERY_MS // 2)


def test_late_failures_of_what_ran_before_it_opened_do_not_put_off_the_probe(opened):
    for _ in range(10):
        opened.wait(EVERY_MS // 10)
        opened.tell(FAILURE)

    assert opened.ask()


events = st.lists(
    st.one_of(
        st.just("ask"), st.sampled_from([SUCCESS, FAILURE, NEITHER]), st.integers(0, 3 * EVERY_MS)
    ),
    max_size=150,
)  # fmt: skip


@given(events, st.integers(1, 5))
def test_it_never_lets_more_through_than_its_quota_and_never_gets_stuck(events, after):
    process = Process(Breaker(after, probe_every=1))
    for event in events:
        before = process.circuit
        if event == "ask":
            may_run = process.ask()
            assert may_run or process.circuit.quota is not None
        elif isinstance(event, int):
            process.wait(event)
        else:
            process.tell(event)
        circuit = process.circuit
        assert circuit.quota is None or circuit.started <= circuit.quota
        assert circuit.failures < after
        if before.quota is not None and circuit.quota is not None:
            assert circuit.quota in {before.quota, 1, 2, 2 * before.quota}

    process.wait()
    assert process.ask()


@given(events)
def test_however_it_stands_it_closes_when_all_is_well_again(events):
    process = Process()
    for event in events:
        if event == "ask":
            process.ask()
        elif isinstance(event, int):
            process.wait(event)
        else:
            process.tell(event)

    for _ in range(10):
        process.wait()
        process.runs_of(50)

    assert process.runs_of(1_000) == 1_000


@pytest.mark.parametrize(
    ("decision", "with_policy", "without"),
    [
        (None, SUCCESS, SUCCESS),
        (Wait(100), FAILURE, FAILURE),
        (Dead(Reason.EXHAUSTED), FAILURE, FAILURE),
        (Dead(Reason.BUDGET), FAILURE, FAILURE),
        (Dead(Reason.FAILED), NEITHER, FAILURE),
        (Dead(Reason.REQUESTED), NEITHER, NEITHER),
        (Dead(Reason.CRASH_LOOP), NEITHER, NEITHER),
        (LetFail(), NEITHER, NEITHER),
    ],
    ids=shown,
)
def test_what_a_run_says(decision, with_policy, without):
    assert outcome_of(decision, has_policy=True) is with_policy
    assert outcome_of(decision, has_policy=False) is without


def test_a_breaker_is_a_value():
    breaker = Breaker(7, probe_every=timedelta(minutes=1))

    assert pickle.loads(pickle.dumps(breaker)) == breaker  # noqa: S301
    assert repr(Breaker(7, probe_every=60)) == "Breaker(after=7, probe_every=60)"
    assert breaker.known_delays_ms() == {60_000}
    assert Breaker() == Breaker(5, probe_every=30)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"after": 0}, "Breaker.after is 0; it must be a whole number from 1 on."),
        ({"after": True}, "Breaker.after is True; it must be a whole number from 1 on."),
        ({"probe_every": 0}, "Breaker.probe_every is 0; it must be above 0, up to ten years."),
    ],
)
def test_a_breaker_that_makes_no_sense_fails_where_it_is_written(values, sentence):
    with pytest.raises(InvalidPolicy) as caught:
        Breaker(**values)

    assert str(caught.value) == sentence


def test_an_interval_that_is_no_time_is_refused():
    with pytest.raises(InvalidDelay, match=r"^Breaker.probe_every is 'often'"):
        Breaker(probe_every="often")
