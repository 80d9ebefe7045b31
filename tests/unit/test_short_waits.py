"""In a user's test a retry takes the shortest lane, and says what was decided; the rest is as in production."""

from celery_dlx_retry.app.known_lanes import Lanes, short_waits
from celery_dlx_retry.settings import Settings
from celery_dlx_retry.topology.names import Names, WorkQueue

QUEUE = WorkQueue(name="orders")


def test_a_retry_takes_the_shortest_lane_and_has_the_decided_delay():
    lanes = Lanes(Settings(), Names(), announced=frozenset({60_000}))
    shortest = lanes.plain(QUEUE, 0)

    with short_waits():
        announced, odd = lanes.plain(QUEUE, 60_000), lanes.plain(QUEUE, 37_123)

    assert (announced.place, announced.length_ms) == (shortest.place, 60_000)
    assert (odd.place, odd.length_ms) == (shortest.place, 37_123)


def test_after_the_block_a_retry_takes_the_lane_of_its_delay_again():
    lanes = Lanes(Settings(), Names(), announced=frozenset({60_000}))
    before = lanes.plain(QUEUE, 60_000)

    with short_waits(), short_waits():
        pass

    assert lanes.plain(QUEUE, 60_000) == before
    assert before.place != lanes.plain(QUEUE, 0).place
