"""Every broker name that a chaos run may have made: to look for what still waits, and to delete it all."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from amqp.exceptions import AMQPError
from kombu.connection import Connection

from celery_dlx_retry.app.context import context_of
from celery_dlx_retry.broker.crash_marks import marks_of
from celery_dlx_retry.broker.dead_letters import browse
from celery_dlx_retry.errors import Missing
from celery_dlx_retry.settings import Settings
from celery_dlx_retry.testing.chaos.project import app, queue_name
from celery_dlx_retry.topology.names import WorkQueue
from celery_dlx_retry.topology.objects import shared_objects, work_queue_objects
from celery_dlx_retry.topology.worker_objects import possible_wait_queues

if TYPE_CHECKING:
    from collections.abc import Iterable

    from celery_dlx_retry.topology.names import Names


def lanes_of(names: Names) -> set[str]:
    """All that workers may use: the announced lanes, and every other that a delay could be rounded up to."""
    settings = Settings()
    return possible_wait_queues(
        names, settings, [WorkQueue(name=queue_name(names.prefix))], context_of(app).exact_lanes
    )


def waiting(url: str, names: Names) -> set[str]:
    """Ids of the tasks that are still in the work queue or in a lane."""
    found: set[str] = set()
    with Connection(url) as connection:
        for queue in (queue_name(names.prefix), *lanes_of(names)):
            try:
                found.update(str(it.message.headers.get("id")) for it in browse(connection, queue))
            except Missing:  # noqa: PERF203 - most lanes were never needed
                continue
            except AMQPError:  # a queue that is there and does not answer
                connection.collect()
    return found


def delete(url: str, names: Names, task_ids: Iterable[str]) -> None:
    """Leave a broker as it was before the run. RabbitMQ does not mind when there is nothing to delete."""
    queue = queue_name(names.prefix)
    others = shared_objects(names) | work_queue_objects(names, WorkQueue(name=queue))
    queues = {queue, *lanes_of(names), *(one.name for one in others.queues)}
    exchanges = {queue, *lanes_of(names), *(one.name for one in others.exchanges)}
    with Connection(url) as connection:
        connection.ensure_connection(max_retries=10)
        with closing(connection.channel()) as channel:
            for name in queues | {marks_of(names, task_id, queue=queue).name for task_id in task_ids}:
                channel.queue_delete(name, nowait=True)
            for name in exchanges:
                channel.exchange_delete(name, nowait=True)
