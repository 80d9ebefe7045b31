"""The least permissions that the broker users of an app need."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from celery.utils.quorum_queues import detect_quorum_queues

from celery_dlx_retry.app.context import context_of
from celery_dlx_retry.app.routes import exchanges_of_tasks
from celery_dlx_retry.broker.work_queues import work_queue
from celery_dlx_retry.operations.app_queues import work_queues_of
from celery_dlx_retry.topology.permissions import Grant, WorkNames, grants, literal

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from celery import Celery
    from kombu.entity import Queue


#: What a broker user of each role does.
ROLES = {
    "worker": "a worker",
    "worker-that-checks": "a worker with dlx_declare = False",
    "sender": "a process that only sends, with dlx_declare = False",
    "viewer": "sees counts: celery dlx status, watch; needs the tag monitoring",
    "reader": "also reads letters and lanes, and could empty them: celery dlx dead list, show, export, waiting list",
    "operator": "also changes them: celery dlx dead replay, edit, purge, import, waiting run, cancel",
    "declarer": "makes and deletes queues for roles that may not: celery dlx declare, check, prune",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Permissions:
    """One grant per role, for one virtual host."""

    vhost: str
    grants: tuple[Grant, ...]


def list_permissions(app: Celery, *, queues: Iterable[str] = (), roles: Iterable[str] = ()) -> Permissions:
    """Return the least permissions of these roles, by default of all ROLES. This needs no broker."""
    consumed = work_queues_of(app, queues)
    exchanges = exchanges_of_tasks(app)
    found = grants(
        context_of(app).names,
        work=_work(consumed),
        dead_letter_keys=[work_queue(queue).dead_letter_key for queue in consumed],
        celery=_of_celery(app),
        exchanges=[literal(name) for name in exchanges if name],
        sends_by_name="" in exchanges,
    )
    wanted = set(roles)
    return Permissions(
        vhost=app.connection_for_read().virtual_host or "/",
        grants=tuple(grant for grant in found if not wanted or grant.role in wanted),
    )


def _work(queues: list[Queue]) -> Iterator[WorkNames]:
    for queue in queues:
        exchanges = [queue.exchange, *(binding.exchange for binding in queue.bindings)]
        yield WorkNames(
            # The name of a broadcast queue ends in a random word of the process that made it.
            queue=literal(queue.name) if not queue.alias else rf"{literal(queue.name.rpartition('.')[0])}\..*",
            exchanges=tuple(literal(exchange.name) for exchange in exchanges if exchange and exchange.name),
            is_declared=not queue.no_declare,
        )


def _of_celery(app: Celery) -> Iterator[str]:
    """Yield patterns for remote control, events and gossip, and for Celery's delay queues if a queue is quorum."""
    conf: Any = app.conf
    yield rf"(.*\.)?{literal(conf.control_exchange)}\.pidbox"
    for name in dict.fromkeys([conf.event_exchange, conf.event_queue_prefix]):
        yield rf"{literal(name)}(\..*)?"
    if conf.worker_detect_quorum_queues and detect_quorum_queues(app, "amqp")[0]:
        yield r"(.*_)?celery_delayed_(\d+|delivery)"
