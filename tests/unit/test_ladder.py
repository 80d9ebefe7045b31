from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_dlx_retry.policy.policies import MAX_DELAY_MS
from celery_dlx_retry.settings import Settings
from celery_dlx_retry.topology.ladder import Ladder, headers_of, rungs, skipped_rungs
from celery_dlx_retry.topology.names import Names
from celery_dlx_retry.topology.specs import BindingSpec, ExchangeSpec, QueueSpec, Topology
from celery_dlx_retry.wire.headers import with_failure, without_broker_headers
from tests.unit.test_headers import FAILURE

NAMES, QUORUM = Names(kind="classic"), Names(kind="quorum")
DEFAULT = Ladder.of(Settings())
YEAR_MS = 365 * 24 * 3600 * 1000

resolutions_ms = st.integers(10, 60_000)
ladders = st.builds(Ladder, resolution_ms=resolutions_ms, rungs=st.integers(1, 35))


@given(st.data(), ladders)
def test_the_sum_of_the_rungs_is_the_delay_rounded_up_to_the_resolution(data, ladder):
    delay_ms = data.draw(st.integers(1, ladder.longest_ms))

    length_ms = ladder.length_ms(ladder.steps(delay_ms))

    assert delay_ms <= length_ms < delay_ms + ladder.resolution_ms
    assert length_ms % ladder.resolution_ms == 0


@given(st.integers(0, 10 * MAX_DELAY_MS), ladders)
def test_steps_go_down_over_rungs_that_there_are_none_twice(delay_ms, ladder):
    steps = ladder.steps(delay_ms)

    assert steps
    assert list(steps) == sorted(set(steps), reverse=True)
    assert set(steps) <= set(range(ladder.rungs))


@given(st.data(), ladders)
def test_a_delay_enters_at_its_highest_binary_digit(data, ladder):
    delay_ms = data.draw(st.integers(1, ladder.longest_ms))

    highest = ladder.steps(delay_ms)[0]

    assert ladder.resolution_ms * 2**highest < delay_ms + ladder.resolution_ms
    assert ladder.resolution_ms * 2 ** (highest + 1) > delay_ms


@given(st.integers(1, 10**15), ladders)
def test_what_is_longer_than_all_rungs_takes_them_all(beyond_ms, ladder):
    steps = ladder.steps(ladder.longest_ms + beyond_ms)

    assert ladder.length_ms(steps) == ladder.longest_ms
    assert len(steps) == ladder.rungs


@given(resolutions_ms, st.integers(60_000, MAX_DELAY_MS))
def test_no_settings_lead_to_more_than_35_rungs_or_a_longer_one_than_rabbitmq_takes(resolution_ms, range_ms):
    ladder = Ladder.of(Settings(ladder_resolution_ms=resolution_ms, ladder_range_ms=range_ms))

    assert 1 <= ladder.rungs <= 35
    assert ladder.resolution_ms * 2 ** (ladder.rungs - 1) <= range_ms
    assert ladder.longest_ms > range_ms - resolution_ms


@given(ladders)
def test_the_topology_is_bounded_and_every_name_is_short_enough(ladder):
    topology = rungs(Names(prefix="p" * 100), ladder)

    assert len(topology.queues) == len(topology.bindings) == ladder.rungs
    assert len(topology.exchanges) == ladder.rungs + 1
    assert len({queue.name for queue in topology.queues}) == ladder.rungs
    assert all(len(queue.name) < 150 for queue in topology.queues)


def test_by_default_100_ms_to_more_than_a_year_fit_on_29_rungs():
    assert Ladder(resolution_ms=100, rungs=29) == DEFAULT
    assert DEFAULT.longest_ms > YEAR_MS
    assert timedelta(milliseconds=DEFAULT.longest_ms).days == 621


@pytest.mark.parametrize(
    ("delay_ms", "steps"),
    [
        (-5, (0,)),
        (0, (0,)),
        (1, (0,)),
        (100, (0,)),
        (101, (1,)),
        (300, (1, 0)),
        (61_300, (9, 6, 5, 2, 0)),
        (YEAR_MS, (28, 25, 23, 22, 19, 18, 9, 8)),
    ],
)
def test_these_delays_take_these_rungs(delay_ms, steps):
    assert DEFAULT.steps(delay_ms) == steps


def test_the_names():
    assert NAMES.rung(100, 7) == "dlx.v2.ladder.classic.00100.07"
    assert QUORUM.rung(60_000, 28) == "dlx.v2.ladder.quorum.60000.28"


def test_the_headers():
    assert headers_of((9, 0)) == {"dlx-rung-09": True, "dlx-rung-00": True}


def test_a_classic_ladder():
    assert rungs(NAMES, Ladder(resolution_ms=100, rungs=2)) == Topology(
        exchanges=(
            ExchangeSpec(
                name="dlx.v2.landing.classic",
                kind="direct",
                arguments=(("alternate-exchange", "dlx.v1.orphans.classic"),),
            ),
            ExchangeSpec(
                name="dlx.v2.ladder.classic.00100.00",
                kind="headers",
                arguments=(("alternate-exchange", "dlx.v2.landing.classic"),),
            ),
            ExchangeSpec(
                name="dlx.v2.ladder.classic.00100.01",
                kind="headers",
                arguments=(("alternate-exchange", "dlx.v2.ladder.classic.00100.00"),),
            ),
        ),
        queues=(
            QueueSpec(
                name="dlx.v2.ladder.classic.00100.00",
                arguments=(
                    ("x-queue-type", "classic"),
                    ("x-message-ttl", 100),
                    ("x-dead-letter-exchange", "dlx.v2.landing.classic"),
                ),
            ),
            QueueSpec(
                name="dlx.v2.ladder.classic.00100.01",
                arguments=(
                    ("x-queue-type", "classic"),
                    ("x-message-ttl", 200),
                    ("x-dead-letter-exchange", "dlx.v2.ladder.classic.00100.00"),
                ),
            ),
        ),
        bindings=(
            BindingSpec(
                exchange="dlx.v2.ladder.classic.00100.00",
                queue="dlx.v2.ladder.classic.00100.00",
                arguments=(("x-match", "all"), ("dlx-rung-00", True)),
            ),
            BindingSpec(
                exchange="dlx.v2.ladder.classic.00100.01",
                queue="dlx.v2.ladder.classic.00100.01",
                arguments=(("x-match", "all"), ("dlx-rung-01", True)),
            ),
        ),
    )


def test_a_quorum_rung():
    (queue,) = rungs(QUORUM, Ladder(resolution_ms=250, rungs=1)).queues

    assert queue == QueueSpec(
        name="dlx.v2.ladder.quorum.00250.00",
        arguments=(
            ("x-queue-type", "quorum"),
            ("x-delivery-limit", 1_000_000_000),
            ("x-message-ttl", 250),
            ("x-dead-letter-exchange", "dlx.v2.landing.quorum"),
            ("x-dead-letter-strategy", "at-least-once"),
            ("x-overflow", "reject-publish"),
        ),
    )


def test_two_resolutions_share_no_name():
    fine, coarse = (rungs(NAMES, Ladder(resolution_ms=ms, rungs=3)) for ms in (100, 200))

    assert not {queue.name for queue in fine.queues} & {queue.name for queue in coarse.queues}


def test_a_longer_range_only_adds_rungs():
    shorter, longer = (rungs(NAMES, Ladder(resolution_ms=100, rungs=count)) for count in (3, 5))

    assert shorter | longer == longer
    assert len(longer.queues) - len(shorter.queues) == 2


def test_rungs_do_not_go_along_when_a_message_is_published_again():
    came = {**headers_of((3, 1)), "dlx-crashes": 1, "tenant": "7"}

    assert without_broker_headers(came) == {"dlx-crashes": 1, "tenant": "7"}
    assert not headers_of((3, 1)).keys() & with_failure(came, FAILURE).keys()


def test_a_rung_that_was_skipped_is_found():
    deaths = [{"queue": NAMES.rung(100, number), "reason": "expired"} for number in (0, 5)]
    came = {**headers_of((5, 3, 0)), "x-death": deaths}

    assert skipped_rungs(NAMES, DEFAULT, came) == {3}
    assert skipped_rungs(QUORUM, DEFAULT, came) == {0, 3, 5}
    assert skipped_rungs(NAMES, DEFAULT, {**headers_of((5, 0)), "x-death": deaths}) == set()
    assert skipped_rungs(NAMES, DEFAULT, {"x-death": deaths}) == set()


@pytest.mark.parametrize("forged", [None, 7, "x", [None], [["queue"]], {"queue": 1}])
def test_forged_deaths_are_no_deaths(forged):
    assert skipped_rungs(NAMES, DEFAULT, {**headers_of((1,)), "x-death": forged, b"\xff": 1}) == {1}
