"""``celery dlx plan``, ``check``, ``declare``, ``policy``, ``permissions``, ``prune`` and ``doctor``."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING

import click

from celery_dlx_retry.cli.context import (
    app_of,
    is_app_named,
    ladder_option,
    management_option,
    note,
    of_queues,
    print_audit,
    queues_option,
    report_missing,
    session_options,
)
from celery_dlx_retry.cli.errors import changes_something
from celery_dlx_retry.cli.output import confirm, echo, json_line, json_option, monitored, table, yes_option
from celery_dlx_retry.operations.diagnose import Diagnosis, diagnose
from celery_dlx_retry.operations.monitor import Monitor
from celery_dlx_retry.operations.permissions import ROLES, list_permissions
from celery_dlx_retry.operations.prune import COUNT_SECONDS, PrunedLane, plan_prune
from celery_dlx_retry.operations.prune import prune as prune_lanes
from celery_dlx_retry.operations.topology import Plan, check_topology, declare_topology, find_policies, make_plan
from celery_dlx_retry.sentences import counted
from celery_dlx_retry.topology import render
from celery_dlx_retry.topology.rabbitmq_policies import DeadLetterPolicy

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_dlx_retry.cli.context import OpenSession
    from celery_dlx_retry.topology.specs import Topology


_FORMATS: dict[str, Callable[[Topology, str], str]] = {
    "mermaid": lambda topology, _vhost: render.mermaid(topology),
    "rabbitmqctl": lambda topology, vhost: render.rabbitmqctl(topology, vhost=vhost),
    "definitions": lambda topology, vhost: json.dumps(render.definitions(topology, vhost=vhost), indent=2),
    "terraform": lambda topology, vhost: render.terraform(topology, vhost=vhost),
}

_EVERY_QUEUE = (
    "#   Celery sends tasks to amq.default, so this user can send to every queue of the virtual host. "
    "docs/brokers.md says how to avoid it."
)


@click.command()
@queues_option
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", *_FORMATS]),
    default="table",
    show_default=True,
    help="Output format.",
)
@ladder_option
@json_option
@click.pass_context
def plan(ctx: click.Context, queue_names: tuple[str, ...] | None, form: str, *, ladder: bool, as_json: bool) -> None:
    """Show what a worker would declare; nothing is changed."""
    if as_json and form != "table":
        raise click.UsageError(f"Give --json or --format {form}, not both.")
    with app_of(ctx) as app:
        made = make_plan(app, queues=queue_names or (), ladder=ladder)
    if as_json:
        for fact in render.facts(made.topology):
            json_line(fact)
    elif form == "table":
        table(("object", "name", "details"), render.rows(made.topology))
        echo(_numbers(made))
    else:
        click.echo(_FORMATS[form](made.topology, made.vhost))


@click.command()
@of_queues
@ladder_option
@json_option
def check(ctx: click.Context, open_session: OpenSession, *, ladder: bool, as_json: bool) -> None:
    """Compare the broker with the plan. Nothing is changed; exit code 1 if anything differs."""
    with open_session() as session:
        found = check_topology(session, ladder=ladder)
    if as_json:
        for drift in found.drifts:
            json_line(asdict(drift))
    elif found.drifts:
        table(("drift", "object", "name", "fact", "cure"), [tuple(asdict(drift).values()) for drift in found.drifts])
    if found.no_management:
        note(f"bindings and policies are not checked. {found.no_management}")
    if not as_json:
        unchecked = f" {len(found.unchecked)} not checked." if found.unchecked else ""
        sound = "No differences found." if unchecked else "The broker matches the plan."
        echo((f"{counted(len(found.differences), 'difference')}." if found.differences else sound) + unchecked)
    if found.differences:
        ctx.exit(1)


@click.command()
@session_options(queues_option)
@ladder_option
@json_option
def declare(_: click.Context, open_session: OpenSession, *, ladder: bool, as_json: bool) -> None:
    """Declare the plan, and work queues that do not exist. Existing objects stay as they are."""
    if not is_app_named():
        raise click.UsageError("No app was named, so there is no plan to declare. Name one: celery -A your_project …")
    with open_session() as session:
        changes_something()
        declared = declare_topology(session, ladder=ladder, monitor=Monitor(notice=print_audit))
    if as_json:
        json_line(asdict(declared))
    else:
        echo("The broker matches the plan.")


@click.command()
@of_queues
@click.option(
    "--format",
    "form",
    type=click.Choice(["rabbitmqctl", "http"]),
    default="rabbitmqctl",
    show_default=True,
    help="A command for the broker's host, or for curl.",
)
@json_option
def policy(ctx: click.Context, open_session: OpenSession, *, form: str, as_json: bool) -> None:
    """Print how to attach a dead-letter exchange to a queue. For work queues that exist; nothing is changed."""
    with open_session() as session:
        found = find_policies(session)
    command = (
        DeadLetterPolicy.rabbitmqctl
        if form == "rabbitmqctl"
        else partial(DeadLetterPolicy.http, url=found.management_url, user=found.user)
    )
    for it in found.queues:
        if as_json:
            facts = {**asdict(it.policy), "command": command(it.policy)} if it.policy else None
            json_line({"queue": it.queue, "dead_letter_exchange": it.dead_letter_exchange, "policy": facts})
        elif it.policy is None:
            echo(f"# {it.queue} has the dead-letter exchange {it.dead_letter_exchange} already.")
        else:
            if it.policy.replaces:
                echo(f"# Takes the place of the policy {it.policy.replaces!r} on {it.queue}, and keeps what it sets.")
            click.echo(command(it.policy))
    if found.no_management:
        note(
            "RabbitMQ applies one policy to a queue. Whether these queues have one is not known; if so, add what it "
            f"sets, and raise the priority. {found.no_management}"
        )
    if report_missing(work_queue=found.missing):
        ctx.exit(1)


@click.command()
@of_queues
@click.option("--all", "everything", is_flag=True, help="Also lanes that this app's tasks announce.")
@click.option("--dry-run", is_flag=True, help="Only show which lanes would be deleted.")
@yes_option
@json_option
def prune(
    _: click.Context, open_session: OpenSession, *, everything: bool, dry_run: bool, yes: bool, as_json: bool
) -> None:
    """Delete lanes in which nothing waits. A retry that needs one makes it again."""
    with open_session() as session:
        planned = plan_prune(session, everything=everything)
        if dry_run:
            lanes = tuple(PrunedLane(lane=lane.name) for lane in planned.empty)
        else:
            if planned.empty and not yes:
                confirm(f"Delete {counted(len(planned.empty), 'empty lane')} of {session.names.prefix!r}?")
            changes_something()
            if planned.empty and not as_json:
                note(f"waiting {COUNT_SECONDS:.0f} s until RabbitMQ has counted again.")
            lanes = prune_lanes(session, planned, monitor=Monitor(notice=print_audit)).lanes
    if as_json:
        for it in lanes:
            json_line({"lane": it.lane, "deleted": not it.reason and not dry_run, "reason": it.reason})
        return
    result = "would go" if dry_run else "deleted"
    table(("lane", "result"), [(it.lane, f"kept: {it.reason}" if it.reason else result) for it in lanes])
    gone = sum(not it.reason for it in lanes)
    reasons = Counter(it.reason for it in lanes if it.reason) + Counter(planned.reasons)
    why = ", ".join(f"{count} because {reason}" for reason, count in sorted(reasons.items()))
    echo(f"{counted(gone, 'empty lane')} {result}; {counted(reasons.total(), 'lane')} kept{': ' * bool(why)}{why}")


def _numbers(made: Plan) -> str:
    """Say how many objects the plan has: lanes grow with the number of work queues."""
    topology = made.topology
    return (
        f"{counted(len(topology.exchanges), 'exchange')}, {counted(len(topology.queues), 'queue')} "
        f"({counted(made.wait_queues, 'wait queue')}) and {counted(len(topology.bindings), 'binding')} "
        f"for {counted(len(made.work_queues), 'work queue')}. "
        "Delays that no task announced add lanes when they are first used."
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


@click.command()
@queues_option
@management_option
@click.option(
    "--fail-on",
    type=click.Choice(["error", "warning"]),
    default="warning",
    show_default=True,
    help="End with exit code 1 for findings of this severity, or a worse one.",
)
@json_option
@click.pass_context
def doctor(
    ctx: click.Context, queue_names: tuple[str, ...] | None, management_url: str | None, fail_on: str, *, as_json: bool
) -> None:
    """Find what loses, loops or blocks; nothing is changed. Exit code 1 if there is a new error or warning."""
    with app_of(ctx) as app, monitored("Examining") as monitor:
        found = diagnose(app, queues=queue_names or (), management_url=management_url, monitor=monitor)
    if as_json:
        for finding in found.findings:
            json_line(asdict(finding))
    elif found.findings:
        table(
            ("severity", "code", "fact", "consequence", "cure"),
            [
                ("accepted" if it.accepted else it.severity, it.code, it.fact, it.consequence, it.cure)
                for it in found.findings
            ],
        )
    if not as_json:
        echo(_summary(found))
    if any(it.severity in {fail_on, "error"} for it in found.grave):
        ctx.exit(1)


def _summary(found: Diagnosis) -> str:
    count = Counter(finding.severity for finding in found.findings if not finding.accepted)
    accepted = sum(finding.accepted for finding in found.findings)
    grave = len(found.grave)
    bites = f"{counted(grave, 'finding')} that {'bites' if grave == 1 else 'bite'}" if grave else "Nothing that bites"
    return (
        f"{bites}: {counted(count['error'], 'error')}, {counted(count['warning'], 'warning')}; "
        f"{count['info']} for information{f'; {accepted} accepted' if accepted else ''}."
    )
