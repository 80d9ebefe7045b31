"""``celery dlx permissions``: the least permissions that the broker users of this app need."""

from __future__ import annotations

from dataclasses import asdict

import click

from celery_dlx_retry.cli.context import app_of, queues_option
from celery_dlx_retry.cli.output import echo, json_line, json_option
from celery_dlx_retry.operations.permissions import ROLES, list_permissions

_EVERY_QUEUE = (
    "#   Celery sends tasks to amq.default, so this user can send to every queue of the virtual host. "
    "docs/brokers.md says how to avoid it."
)


@click.command()
@queues_option
@click.option("--user", metavar="NAME", default="USER", show_default=True, help="The broker user to grant them to.")
@click.argument("roles", nargs=-1, type=click.Choice(list(ROLES)))
@json_option
@click.pass_context
def permissions(
    ctx: click.Context, queue_names: tuple[str, ...] | None, user: str, roles: tuple[str, ...], *, as_json: bool
) -> None:
    """Print how to grant a broker user what it needs. This is the least that its ROLES need; nothing is changed."""
    with app_of(ctx) as app:
        found = list_permissions(app, queues=queue_names or (), roles=roles)
    for grant in found.grants:
        if as_json:
            json_line({**asdict(grant), "vhost": found.vhost, "reaches_every_queue": grant.reaches_every_queue})
        else:
            echo(f"# {grant.role}: {ROLES[grant.role]}")
            click.echo(grant.rabbitmqctl(user=user, vhost=found.vhost))
            if grant.reaches_every_queue:
                click.echo(_EVERY_QUEUE)
