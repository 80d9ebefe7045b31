"""``celery dlx permissions``: the least that the broker users of this app must be allowed."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click
from celery.utils.quorum_queues import detect_quorum_queues

from celery_dlx_retry.app.context import context_of
from celery_dlx_retry.broker.work_queues import work_queue
from celery_dlx_retry.cli.context import queues_of, queues_option
from celery_dlx_retry.cli.errors import one_sentence
from celery_dlx_retry.cli.output import echo, json_line, json_option
from celery_dlx_retry.topology.permissions import WorkNames, grants, literal, territory
from celery_dlx_retry.worker.routes import exchanges_of_tasks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery import Celery
    from kombu.entity import Queue

_WHO = {
    "worker": "a worker",
    "worker-that-checks": "a worker with dlx_declare = False",
    "sender": "a process that only sends, with dlx_declare = False",
    "viewer": "sees counts: celery dlx status, watch; needs the tag monitoring",
    "reader": "also reads letters and lanes, and could empty them: celery dlx dead list, show, export, waiting list",
    "operator": "also changes them: celery dlx dead replay, edit, purge, import, waiting run, cancel",
    "declarer": "makes and deletes queues for roles that may not: celery dlx declare, check, prune",
}
_EVERY_QUEUE = (
    "#   Celery sends tasks to amq.default, so this user can send to every queue of the virtual host. "
    "docs/brokers.md says how to avoid it."
)


@click.command()
@queues_option
@click.option("--user", metavar="NAME", default="USER", show_default=True, help="The broker user to grant them to.")
@click.argument("roles", nargs=-1, type=click.Choice(list(_WHO)))
@json_option
@click.pass_context
def permissions(
    ctx: click.Context, queue_names: str | None, user: str, roles: tuple[str, ...], *, as_json: bool
) -> None:
    """Print how to grant a broker user what it needs. That is the least that its ROLES need; nothing is changed."""
    app = ctx.obj.app
    with one_sentence(app):
        queues = queues_of(app, queue_names)
        exchanges = exchanges_of_tasks(app)
        there = territory(
            context_of(app).names,
            work=_work(queues),
            families=[work_queue(queue).dead_letter_key for queue in queues],
            celery=_of_celery(app),
            exchanges=[literal(name) for name in exchanges if name],
            sends_by_name="" in exchanges,
        )
        vhost = app.connection_for_read().virtual_host or "/"
    for grant in grants(there):
        if roles and grant.role not in roles:
            continue
        if as_json:
            json_line({**asdict(grant), "vhost": vhost, "reaches_every_queue": grant.reaches_every_queue})
        else:
            echo(f"# {grant.role}: {_WHO[grant.role]}")
            click.echo(grant.rabbitmqctl(user=user, vhost=vhost))
            if grant.reaches_every_queue:
                click.echo(_EVERY_QUEUE)


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
    """Remote control, events and gossip; and the queues that a worker makes if it finds that a queue is quorum."""
    conf: Any = app.conf
    yield rf"(.*\.)?{literal(conf.control_exchange)}\.pidbox"
    for name in dict.fromkeys([conf.event_exchange, conf.event_queue_prefix]):
        yield rf"{literal(name)}(\..*)?"
    if conf.worker_detect_quorum_queues and detect_quorum_queues(app, "amqp")[0]:
        yield r"(.*_)?celery_delayed_(\d+|delivery)"
