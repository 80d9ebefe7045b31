"""``celery dlx plan``, ``check``, ``declare``, ``policy``, ``prune``: what stands on the broker, and what should."""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from celery_dlx_retry.app.context import context_of
from celery_dlx_retry.broker.find_drift import find
from celery_dlx_retry.broker.peek import counts
from celery_dlx_retry.broker.prune_lanes import COUNT_SECONDS
from celery_dlx_retry.broker.prune_lanes import prune as prune_lanes
from celery_dlx_retry.broker.work_queues import declare_if_missing
from celery_dlx_retry.cli.audit import audit
from celery_dlx_retry.cli.context import (
    is_app_named,
    ladder_option,
    management_option,
    not_there,
    note,
    queues_of,
    queues_option,
    targeting,
)
from celery_dlx_retry.cli.errors import changes_something, one_sentence
from celery_dlx_retry.cli.output import confirm, counted, echo, json_line, json_option, table, yes_option
from celery_dlx_retry.topology import render as plans
from celery_dlx_retry.topology.dead_letter_policy import DeadLetterPolicy, dead_letter_policy
from celery_dlx_retry.topology.rabbitmq_policies import BrokerPolicies

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from celery_dlx_retry.cli.context import Target
    from celery_dlx_retry.topology.names import Lane
    from celery_dlx_retry.topology.specs import Topology

_FORMATS: dict[str, Callable[[Topology, str], str]] = {
    "mermaid": lambda topology, _vhost: plans.mermaid(topology),
    "rabbitmqctl": lambda topology, vhost: plans.rabbitmqctl(topology, vhost=vhost),
    "definitions": lambda topology, vhost: json.dumps(plans.definitions(topology, vhost=vhost), indent=2),
    "terraform": lambda topology, vhost: plans.terraform(topology, vhost=vhost),
}

_NOT_COUNTED = "; lanes that tasks announce stay, and are not counted (--all)"


@click.command()
@queues_option
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", *_FORMATS]),
    default="table",
    show_default=True,
    help="In whose words.",
)
@ladder_option
@json_option
@click.pass_context
def plan(ctx: click.Context, queue_names: str | None, form: str, *, ladder: bool, as_json: bool) -> None:
    """Show what a worker would declare; nothing is changed."""
    app = ctx.obj.app
    if as_json and form != "table":
        raise click.UsageError(f"--json is a form of its own: give it without --format {form}, or that alone.")
    with one_sentence(app):
        queues = queues_of(app, queue_names)
        context_of(app).validate_delays()
        topology = context_of(app).plan(queues, ladder=ladder)
        vhost = app.connection_for_read().virtual_host or "/"
    if as_json:
        for fact in plans.facts(topology):
            json_line(fact)
    elif form == "table":
        table(("object", "name", "details"), plans.rows(topology))
        echo(_numbers(topology, work_queues=len(queues)))
    else:
        click.echo(_FORMATS[form](topology, vhost))


@click.command()
@queues_option
@management_option
@ladder_option
@json_option
@click.pass_context
def check(
    ctx: click.Context, queue_names: str | None, management_url: str | None, *, ladder: bool, as_json: bool
) -> None:
    """Compare what stands on the broker with the plan. Nothing is changed; exit code 1 if anything differs."""
    with targeting(ctx, queue_names, management_url) as target:
        target.context.validate_delays()
        found = list(find(target.connection, target.plan(ladder=ladder), target.management))
    differences = [drift for drift in found if drift.kind != "unchecked"]
    if as_json:
        for drift in found:
            json_line(asdict(drift))
    elif found:
        table(("drift", "object", "name", "fact", "cure"), [tuple(asdict(drift).values()) for drift in found])
    if not target.management:
        note(f"bindings and policies are not checked. {target.no_management}")
    if not as_json:
        unchecked = f" {len(found) - len(differences)} not checked." if len(found) > len(differences) else ""
        sound = "No differences found." if unchecked else "All of it stands."
        echo((f"{counted(len(differences), 'difference')}." if differences else sound) + unchecked)
    if differences:
        ctx.exit(1)


@click.command()
@queues_option
@ladder_option
@json_option
@click.pass_context
def declare(ctx: click.Context, queue_names: str | None, *, ladder: bool, as_json: bool) -> None:
    """Declare the plan, and work queues that do not exist. What stands is left as it is."""
    if not is_app_named():
        raise click.UsageError("No app was named, so there is no plan to declare. Say which: celery -A your_project …")
    with targeting(ctx, queue_names, None) as target:
        target.context.validate_delays()
        target.insist_on_what_is_needed()
        changes_something()
        facts: dict[str, Any] = {}
        outcome = {"outcome": "interrupted"}
        try:
            for queue in target.queues:
                declare_if_missing(target.connection, queue)
            ladder = ladder or target.has_ladder
            topology = target.plan(ladder=ladder)
            facts = {kind: len(getattr(topology, kind)) for kind in ("exchanges", "queues", "bindings")}
            target.context.declare(target.connection, target.queues, ladder=ladder)
            outcome = {}
        finally:
            audit("declare", prefix=target.names.prefix, **facts, **outcome)
    if as_json:
        json_line({"prefix": target.names.prefix, **facts})
    else:
        echo("All of it stands.")


@click.command()
@queues_option
@management_option
@click.option(
    "--format",
    "form",
    type=click.Choice(["rabbitmqctl", "http"]),
    default="rabbitmqctl",
    show_default=True,
    help="On the broker's host, or with curl.",
)
@json_option
@click.pass_context
def policy(
    ctx: click.Context, queue_names: str | None, management_url: str | None, form: str, *, as_json: bool
) -> None:
    """Print how to attach a dead-letter exchange to a queue. For work queues that exist; nothing is changed."""
    with targeting(ctx, queue_names, management_url) as target:
        found = list(_policies(target))
        there = counts(target.connection, [queue.name for queue in target.queues])
    url = target.management.url if target.management else "http://localhost:15672"
    user = target.connection.userid or "guest"
    command = (
        DeadLetterPolicy.rabbitmqctl if form == "rabbitmqctl" else partial(DeadLetterPolicy.http, url=url, user=user)
    )
    for queue, exchange, wanted in found:
        if as_json:
            facts = {**asdict(wanted), "command": command(wanted)} if wanted else {}
            json_line({"queue": queue, "dead_letter_exchange": exchange, "policy": facts or None})
        elif wanted is None:
            echo(f"# {queue} has the dead-letter exchange {exchange} already.")
        else:
            if wanted.replaces:
                echo(f"# Takes the place of the policy {wanted.replaces!r} on {queue}, and keeps what it sets.")
            click.echo(command(wanted))
    if not target.management:
        note(
            "RabbitMQ applies one policy to a queue. Whether these queues have one is not known; if so, add what it "
            f"sets, and raise the priority. {target.no_management}"
        )
    if queue_names and not_there([queue.name for queue in target.queues if queue.name not in there]):
        ctx.exit(1)


@click.command()
@queues_option
@management_option
@click.option("--all", "everything", is_flag=True, help="Also lanes that this app's tasks announce.")
@click.option("--dry-run", is_flag=True, help="Only say which.")
@yes_option
@json_option
@click.pass_context
def prune(  # noqa: PLR0913 - one per option
    ctx: click.Context,
    queue_names: str | None,
    management_url: str | None,
    *,
    everything: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Delete lanes in which nothing waits. A retry that needs one makes it again."""
    with targeting(ctx, queue_names, management_url) as target:
        if not target.context.settings.declare:
            raise click.ClickException(
                "dlx_declare is False: the workers could not make a lane again. Prune with an app that may declare."
            )
        if target.management is None:
            raise click.ClickException(
                "Nothing was deleted: prune needs the HTTP API, because AMQP does not show every message of a lane. "
                f"{target.no_management}"
            )
        announced = set() if everything else {queue.name for queue in target.plan().queues}
        # Lanes that expire go by themselves. A rung stays: messages of higher rungs pass its exchange.
        lanes = [it for it in target.lanes() if it.stays and not it.is_rung and it.name not in announced]
        told = target.management.queues()
        empty = [lane for lane in lanes if told.get(lane.name, {}).get("messages") == 0]
        outcome: list[tuple[Lane, str]] = []
        if dry_run:
            outcome = [(lane, "") for lane in empty]
        else:
            if empty and not yes:
                what = counted(len(empty), "empty lane")
                confirm(f"Delete {what} of {target.names.prefix!r}?")
            changes_something()
            try:
                if empty and not as_json:
                    note(f"waiting {COUNT_SECONDS:.0f} s until RabbitMQ has counted again.")
                outcome.extend(prune_lanes(target.connection, target.names, empty, management=target.management))
            finally:
                deleted = sum(1 for _, reason in outcome if not reason)
                audit("prune", prefix=target.names.prefix, deleted=deleted, kept=len(lanes) - deleted)
    gone = [lane for lane, reason in outcome if not reason]
    if as_json:
        for lane, reason in outcome:
            json_line({"lane": lane.name, "deleted": not reason and not dry_run, "reason": reason})
    else:
        result = "would go" if dry_run else "deleted"
        table(("lane", "result"), [(lane.name, f"kept: {reason}" if reason else result) for lane, reason in outcome])
        kept = f"{counted(len(lanes) - len(gone), 'lane')} kept (not empty, in use, or not counted yet)"
        echo(f"{counted(len(gone), 'empty lane')} {result}; {kept}{'' if everything else _NOT_COUNTED}")


def _numbers(topology: Topology, *, work_queues: int) -> str:
    """How many objects the plan has: lanes grow with the number of work queues."""
    lanes = sum("x-message-ttl" in dict(queue.arguments) for queue in topology.queues)
    return (
        f"{counted(len(topology.exchanges), 'exchange')}, {counted(len(topology.queues), 'queue')} "
        f"({counted(lanes, 'wait queue')}) and {counted(len(topology.bindings), 'binding')} "
        f"for {counted(work_queues, 'work queue')}. "
        "Delays that no task announced add lanes when they are first used."
    )


def _policies(target: Target) -> Iterator[tuple[str, str, DeadLetterPolicy | None]]:
    """Each work queue with the dead-letter exchange that it has, or the policy that it needs."""
    seen = target.management.queues() if target.management else {}
    policies = target.management.policies() if target.management else BrokerPolicies()
    for queue, work_queue in zip(target.queues, target.work_queues, strict=True):
        facts: dict[str, Any] = seen.get(queue.name, {})
        arguments = {**(queue.queue_arguments or {}), **facts.get("arguments", {})}
        kind = target.types[queue.name] or "classic"
        current = policies.of(queue.name, kind)
        exchange = arguments.get("x-dead-letter-exchange", current.get("definition", {}).get("dead-letter-exchange"))
        if exchange is not None:
            yield queue.name, exchange, None
            continue
        yield (
            queue.name,
            "",
            dead_letter_policy(
                target.names,
                work_queue,
                kind=kind,
                vhost=target.connection.virtual_host or "/",
                arguments=arguments,
                policy=current.get("name", ""),
                definition=current.get("definition"),
                priority=current.get("priority", -1),
            ),
        )
