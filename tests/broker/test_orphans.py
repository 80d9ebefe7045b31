"""Orphans go back to their work queues when those exist again."""

from __future__ import annotations

from decimal import Decimal

import pytest
from support import eventually, put

from celery_dlx_retry.broker.orphans import return_orphans
from celery_dlx_retry.topology.objects import shared_objects


def test_an_orphan_that_cannot_be_written_again_stays_and_the_others_return(bench):
    bench.declare_topology(shared_objects(bench.names))
    work = bench.queue("work")
    for number in range(3):
        headers = {"odd": Decimal(-(2**31))} if number == 1 else {}  # py-amqp reads it, and we do not write it
        put(bench.url, [number], exchange=bench.names.return_exchange(), routing_key=work, headers=headers)
    eventually(lambda: bench.depth(bench.names.orphans()) == 3)

    returned = return_orphans(bench.connect(), bench.names, {work}, publisher=bench.publisher())

    assert returned == 2
    assert sorted(bench.ids(work)) == [0, 2]
    eventually(lambda: bench.depth(bench.names.orphans()) == 1)


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_a_full_work_queue_keeps_no_orphan_of_another_one_waiting(bench, kind):
    bench.use(kind)
    bench.declare_topology(shared_objects(bench.names))
    full = bench.queue("full", "quorum", x_max_length=1, x_overflow="reject-publish")
    work = bench.queue("work", "classic")
    put(bench.url, range(3), routing_key=full, may_refuse=True)
    for number, queue in enumerate([full, full, work, full, work]):
        put(bench.url, [number], exchange=bench.names.return_exchange(), routing_key=queue)
    eventually(lambda: bench.depth(bench.names.orphans()) == 5)

    returned = return_orphans(bench.connect(), bench.names, {full, work}, publisher=bench.publisher())

    assert returned == 2
    assert sorted(bench.ids(work)) == [2, 4]
    eventually(lambda: bench.depth(bench.names.orphans()) == 3)
