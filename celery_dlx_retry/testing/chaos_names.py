"""Every broker name that a chaos run may have made: to look for what still waits, and to delete it all."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from kombu.connection import Connection

from celery_dlx_retry.broker.deadletters import browse
from celery_dlx_retry.broker.starts import marks_of
from celery_dlx_retry.core.lanes import grid
from celery_dlx_retry.core.settings import Settings
from celery_dlx_retry.core.topology import Names, WorkQueue, around, foundation, lane
from celery_dlx_retry.errors import Missing
from celery_dlx_retry.testing.chaos_project import app, queue_name
from celery_dlx_retry.worker.runtime import runtime_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from celery_dlx_retry.core.settings import QueueType
    from celery_dlx_retry.core.topology import Topology


def topology_of(prefix: str, kind: QueueType) -> Topology:
    """All that workers may declare: the announced lanes, and every other that a delay could be rounded up to."""
    names, settings = Names(prefix=prefix), Settings()
    topology = foundation(names, [kind]) | around(names, WorkQueue(name=queue_name(prefix), kind=kind))
    for delay_ms in sorted(runtime_of(app).exact_lanes | set(grid(settings.grid, settings.max_delay_ms))):
        topology |= lane(names, kind, delay_ms)
    return topology


def waiting(url: str, prefix: str, kind: QueueType) -> set[str]:
    """Ids of the tasks that are still in the work queue or in a lane."""
    kept = {Names(prefix=prefix).dead_letters(queue_name(prefix)), Names(prefix=prefix).orphans(kind)}
    found: set[str] = set()
    with Connection(url) as connection:
        for queue in (queue_name(prefix), *(queue.name for queue in topology_of(prefix, kind).queues)):
            if queue in kept:
                continue
            try:
                found.update(str(it.message.headers.get("id")) for it in browse(connection, queue))
            except Missing:
                continue
    return found


def delete(url: str, prefix: str, kind: QueueType, task_ids: Iterable[str]) -> None:
    """Leave a broker as it was before the run. RabbitMQ does not mind when there is nothing to delete."""
    names, topology = Names(prefix=prefix), topology_of(prefix, kind)
    with Connection(url) as connection:
        connection.ensure_connection(max_retries=10)
        with closing(connection.channel()) as channel:
            for queue in (queue_name(prefix), *(queue.name for queue in topology.queues)):
                channel.queue_delete(queue, nowait=True)
            for task_id in task_ids:
                channel.queue_delete(marks_of(names, task_id).name, nowait=True)
            for exchange in (queue_name(prefix), *(exchange.name for exchange in topology.exchanges)):
                channel.exchange_delete(exchange, nowait=True)
