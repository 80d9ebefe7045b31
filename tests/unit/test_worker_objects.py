"""What a worker declares for its work queues, and which wait queues its settings can have made."""

from __future__ import annotations

from celery_dlx_retry.settings import Settings
from celery_dlx_retry.topology.ladder import Ladder, rungs
from celery_dlx_retry.topology.names import Names, WorkQueue
from celery_dlx_retry.topology.worker_objects import announced_lanes, possible_wait_queues, topology_without_lanes

NAMES = Names()
ORDERS, PAYMENTS = WorkQueue(name="orders"), WorkQueue(name="payments")


def names_of(topology):
    return {queue.name for queue in topology.queues}


def test_each_work_queue_has_a_dead_letter_queue_and_all_share_the_orphans():
    found = names_of(topology_without_lanes(NAMES, [ORDERS, PAYMENTS], ladder=None))

    assert found == {"orders.dead", "payments.dead", NAMES.orphans()}


def test_a_ladder_brings_its_rungs_and_a_landing_queue_for_each_work_queue():
    ladder = Ladder.of(Settings())
    without = names_of(topology_without_lanes(NAMES, [ORDERS, PAYMENTS], ladder=None))

    found = names_of(topology_without_lanes(NAMES, [ORDERS, PAYMENTS], ladder=ladder))

    landings = {NAMES.landing(ORDERS), NAMES.landing(PAYMENTS)}
    assert found - without == names_of(rungs(NAMES, ladder)) | landings


def test_each_work_queue_has_a_lane_for_each_announced_delay():
    found = names_of(announced_lanes(NAMES, [ORDERS, PAYMENTS], [60_000, 1_000]))

    assert found == {NAMES.lane(queue, delay_ms) for queue in (ORDERS, PAYMENTS) for delay_ms in (1_000, 60_000)}


def test_possible_wait_queues_are_the_announced_lanes_the_grid_the_rungs_and_the_landing_queues():
    settings = Settings()

    found = possible_wait_queues(NAMES, settings, [ORDERS], [61_234])

    assert NAMES.lane(ORDERS, 61_234) in found
    assert NAMES.lane(ORDERS, 100) in found
    assert NAMES.lane(PAYMENTS, 100) not in found
    assert NAMES.landing(ORDERS) in found
    assert names_of(rungs(NAMES, Ladder.of(settings))) <= found
    assert ORDERS.name not in found
