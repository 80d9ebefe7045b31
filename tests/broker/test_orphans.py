"""Orphans go back to their work queues when those exist again."""

from __future__ import annotations

import pytest
from support import eventually, put

from celery_dlx_retry.broker.orphans import return_orphans
from celery_dlx_retry.core.topology import foundation


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_a_full_work_queue_keeps_no_orphan_of_another_one_waiting(bench, kind):
    bench.use(kind)
    bench.stand(foundation(bench.names))
    full = bench.queue("full", "quorum", x_max_length=1, x_overflow="reject-publish")
    work = bench.queue("work", "classic")
    put(bench.url, range(3), routing_key=full, may_refuse=True)
    for number, queue in enumerate([full, full, work, full, work]):
        put(bench.url, [number], exchange=bench.names.back(), routing_key=queue)
    eventually(lambda: bench.depth(bench.names.orphans()) == 5)

    returned = return_orphans(bench.connect(), bench.names, {full, work}, publisher=bench.publisher())

    assert returned == 2
    assert sorted(bench.ids(work)) == [2, 4]
    eventually(lambda: bench.depth(bench.names.orphans()) == 3)
