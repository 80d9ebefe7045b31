import pytest

from celery_dlx_retry.errors import DelayTooLong
from celery_dlx_retry.settings import Settings
from celery_dlx_retry.topology.ladder import Ladder, rungs
from celery_dlx_retry.topology.names import Names, WorkQueue
from celery_dlx_retry.topology.objects import landing, lane
from celery_dlx_retry.topology.wait_route import LadderRoute, LaneRoute, WaitKind, WaitRoute, choose, route

SETTINGS = Settings()
LADDER = Ladder.of(SETTINGS)
NAMES = Names(kind="classic")
ORDERS = WorkQueue(name="orders")
ANNOUNCED = frozenset({5_000, 60_000})
RETRY, COUNTDOWN = WaitKind.RETRY, WaitKind.COUNTDOWN
ALL = tuple(reversed(range(29)))


def chosen(wish, delay_ms, *, limit_ms=SETTINGS.max_delay_ms):
    return choose(delay_ms, wish=wish, announced=ANNOUNCED, grid=SETTINGS.grid, limit_ms=limit_ms, ladder=LADDER)


@pytest.mark.parametrize(
    ("wish", "delay_ms", "choice"),
    [
        # announced: its own lane, whatever it is for
        (RETRY, 5_000, LaneRoute(5_000)),
        (COUNTDOWN, 5_000, LaneRoute(5_000)),
        (COUNTDOWN, 60_000, LaneRoute(60_000)),
        # a retry that nobody announced: the next lane of the grid
        (RETRY, 0, LaneRoute(100)),
        (RETRY, 37_000, LaneRoute(40_461)),
        (RETRY, 61_300, LaneRoute(69_915)),
        # an appointment that nobody announced: the ladder
        (COUNTDOWN, 1, LadderRoute((0,), 100)),
        (COUNTDOWN, 37_000, LadderRoute((8, 6, 5, 4, 1), 37_000)),
        (COUNTDOWN, 61_300, LadderRoute((9, 6, 5, 2, 0), 61_300)),
        (COUNTDOWN, 61_301, LadderRoute((9, 6, 5, 2, 1), 61_400)),
        # an appointment beyond the range: all rungs, and the rest afterwards
        (COUNTDOWN, 10**12, LadderRoute(ALL, 53_687_091_100)),
    ],
)
def test_which_way_when(wish, delay_ms, choice):
    assert chosen(wish, delay_ms) == choice


def test_a_retry_beyond_the_limit_is_an_error_and_an_appointment_is_not():
    with pytest.raises(DelayTooLong):
        chosen(RETRY, 60_000, limit_ms=59_999)

    assert chosen(COUNTDOWN, 60_000, limit_ms=59_999) == LadderRoute((9, 6, 4, 3), 60_000)


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_the_way_of_a_lane(kind):
    names = Names(kind=kind)

    assert route(LaneRoute(5_000), names, ORDERS, ladder=LADDER) == WaitRoute(
        length_ms=5_000,
        exchange="dlx.v2.wait",
        routing_key=f"dlx.v2.wait.{kind}.000000005000.orders",
        headers={},
        lane=lane(names, ORDERS, 5_000),
    )


def test_the_way_of_a_shared_lane_carries_the_work_queue_in_the_routing_key():
    names = Names(bulkheads=8)

    assert route(LaneRoute(5_000), names, ORDERS, ladder=LADDER) == WaitRoute(
        length_ms=5_000,
        exchange="dlx.v2.shared.quorum.000000005000.001",
        routing_key="orders",
        headers={},
        lane=lane(names, ORDERS, 5_000),
    )


def test_the_way_of_an_expiring_lane():
    assert route(LaneRoute(5_000), NAMES, ORDERS, ladder=LADDER, lane_expires_ms=600_000) == WaitRoute(
        length_ms=5_000,
        exchange="dlx.v2.wait",
        routing_key="dlx.v2.wait.classic.000000005000-000000605000.orders",
        headers={},
        lane=lane(NAMES, ORDERS, 5_000, expires_ms=600_000),
    )


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_the_way_of_the_ladder_begins_at_its_highest_rung_and_needs_all_of_them(kind):
    names = Names(kind=kind)

    assert route(LadderRoute((9, 6, 5, 2, 0), 61_300), names, ORDERS, ladder=LADDER) == WaitRoute(
        length_ms=61_300,
        exchange=f"dlx.v2.ladder.{kind}.00100.09",
        routing_key="orders",
        headers={f"dlx-rung-{number:02d}": True for number in (9, 6, 5, 2, 0)},
        needs=rungs(names, LADDER) | landing(names, ORDERS),
    )
