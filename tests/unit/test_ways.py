import pytest

from celery_dlx_retry.core.ladder import Ladder, rungs
from celery_dlx_retry.core.settings import Settings
from celery_dlx_retry.core.topology import Names, WorkQueue, landing, lane
from celery_dlx_retry.core.ways import TakeLadder, TakeLane, Way, Wish, choose, way
from celery_dlx_retry.errors import DelayTooLong

SETTINGS = Settings()
LADDER = Ladder.of(SETTINGS)
NAMES = Names(kind="classic")
ORDERS = WorkQueue(name="orders")
ANNOUNCED = frozenset({5_000, 60_000})
RETRY, APPOINTMENT = Wish.RETRY, Wish.APPOINTMENT
ALL = tuple(reversed(range(29)))


def chosen(wish, delay_ms, *, limit_ms=SETTINGS.max_delay_ms):
    return choose(delay_ms, wish=wish, announced=ANNOUNCED, grid=SETTINGS.grid, limit_ms=limit_ms, ladder=LADDER)


@pytest.mark.parametrize(
    ("wish", "delay_ms", "choice"),
    [
        # announced: its own lane, whatever it is for
        (RETRY, 5_000, TakeLane(5_000)),
        (APPOINTMENT, 5_000, TakeLane(5_000)),
        (APPOINTMENT, 60_000, TakeLane(60_000)),
        # a retry that nobody announced: the next lane of the grid
        (RETRY, 0, TakeLane(100)),
        (RETRY, 37_000, TakeLane(40_461)),
        (RETRY, 61_300, TakeLane(69_915)),
        # an appointment that nobody announced: the ladder
        (APPOINTMENT, 1, TakeLadder((0,), 100)),
        (APPOINTMENT, 37_000, TakeLadder((8, 6, 5, 4, 1), 37_000)),
        (APPOINTMENT, 61_300, TakeLadder((9, 6, 5, 2, 0), 61_300)),
        (APPOINTMENT, 61_301, TakeLadder((9, 6, 5, 2, 1), 61_400)),
        # an appointment beyond the range: all rungs, and the rest afterwards
        (APPOINTMENT, 10**12, TakeLadder(ALL, 53_687_091_100)),
    ],
)
def test_which_way_when(wish, delay_ms, choice):
    assert chosen(wish, delay_ms) == choice


def test_a_retry_beyond_the_limit_is_an_error_and_an_appointment_is_not():
    with pytest.raises(DelayTooLong):
        chosen(RETRY, 60_000, limit_ms=59_999)

    assert chosen(APPOINTMENT, 60_000, limit_ms=59_999) == TakeLadder((9, 6, 4, 3), 60_000)


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_the_way_of_a_lane(kind):
    names = Names(kind=kind)

    assert way(TakeLane(5_000), names, ORDERS, ladder=LADDER) == Way(
        length_ms=5_000,
        exchange="dlx.v2.wait",
        routing_key=f"dlx.v2.wait.{kind}.000000005000.orders",
        headers={},
        lane=lane(names, ORDERS, 5_000),
    )


def test_the_way_of_a_shared_lane_carries_the_work_queue_in_the_routing_key():
    names = Names(bulkheads=8)

    assert way(TakeLane(5_000), names, ORDERS, ladder=LADDER) == Way(
        length_ms=5_000,
        exchange="dlx.v2.shared.quorum.000000005000.001",
        routing_key="orders",
        headers={},
        lane=lane(names, ORDERS, 5_000),
    )


def test_the_way_of_an_expiring_lane():
    assert way(TakeLane(5_000), NAMES, ORDERS, ladder=LADDER, lane_expires_ms=600_000) == Way(
        length_ms=5_000,
        exchange="dlx.v2.wait",
        routing_key="dlx.v2.wait.classic.000000005000-000000605000.orders",
        headers={},
        lane=lane(NAMES, ORDERS, 5_000, expires_ms=600_000),
    )


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_the_way_of_the_ladder_begins_at_its_highest_rung_and_needs_all_of_them(kind):
    names = Names(kind=kind)

    assert way(TakeLadder((9, 6, 5, 2, 0), 61_300), names, ORDERS, ladder=LADDER) == Way(
        length_ms=61_300,
        exchange=f"dlx.v2.ladder.{kind}.00100.09",
        routing_key="orders",
        headers={f"dlx-rung-{number:02d}": True for number in (9, 6, 5, 2, 0)},
        needs=rungs(names, LADDER) | landing(names, ORDERS),
    )
