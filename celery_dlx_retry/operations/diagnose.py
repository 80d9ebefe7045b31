"""Diagnose an app and its broker: find what loses tasks, repeats them for ever or blocks a worker."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from celery_dlx_retry.app.routes import exchanges_of_tasks
from celery_dlx_retry.broker.find_drift import find, missing_queue
from celery_dlx_retry.broker.permission_probe import forbidden
from celery_dlx_retry.doctor.facts import Facts
from celery_dlx_retry.doctor.rules import Finding, findings
from celery_dlx_retry.operations.app_facts import facts_of_app, facts_of_queues, facts_of_tasks
from celery_dlx_retry.operations.app_queues import (
    all_dead_letter_queues,
    consumed_queues,
    known_work_queues,
    load_tasks,
)
from celery_dlx_retry.operations.connect import (
    broker_errors,
    connect,
    connection_of,
    is_rabbitmq,
    require_readable_url,
    transport_of,
)
from celery_dlx_retry.operations.monitor import NO_MONITOR, Monitor
from celery_dlx_retry.operations.operation_errors import BrokerUnavailable, Stopped
from celery_dlx_retry.operations.session import BrokerSession, open_session, operation
from celery_dlx_retry.topology.broker_requirements import Server
from celery_dlx_retry.topology.rabbitmq_policies import BrokerPolicies

if TYPE_CHECKING:
    from collections.abc import Iterable

    from celery import Celery

    from celery_dlx_retry.topology.drift import Drift

#: ``Monitor.progress`` is called with the number of steps that are done: app, topology, queues, permissions.
STEPS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What was found, the gravest first."""

    findings: tuple[Finding, ...]

    @property
    def grave(self) -> tuple[Finding, ...]:
        """All findings but those for information."""
        return tuple(finding for finding in self.findings if finding.severity != "info")


def diagnose(
    app: Celery, *, queues: Iterable[str] = (), management_url: str | None = None, monitor: Monitor = NO_MONITOR
) -> Diagnosis:
    """Look at the app, its queues and its broker. This changes nothing, and works for a broker that is down.

    Raise Stopped if the caller cancels it.
    """
    named = list(queues)
    load_tasks(app)
    require_readable_url(app)
    if not is_rabbitmq(app):
        facts = Facts(transport=transport_of(app), product="", tasks=facts_of_tasks(app))
    elif unreachable := _unreachable(app):
        found = facts_of_app(app, consumed_queues(app, named))
        facts = replace(found, product="", version=(), unreachable=unreachable)
    else:
        with open_session(app, queues=named, management_url=management_url) as session:
            facts = _facts(session, monitor)
    return Diagnosis(findings=tuple(findings(facts)))


def _unreachable(app: Celery) -> str:
    """Return why no connection can be made; empty if one can."""
    try:
        with broker_errors(app), connection_of(app) as connection:
            connect(connection)
    except BrokerUnavailable as problem:
        return str(problem)
    return ""


@operation
def diagnose_quietly(session: BrokerSession) -> tuple[Diagnosis, tuple[str, ...]]:
    """Return the diagnosis over an open session, and the objects of the plan that are missing.

    For a process that repeats it. It does not test permissions: each test is an error in the log of the broker, or a
    message without a route. It does not look at lanes that expire: a look at such a lane keeps it alive. The HTTP API
    tells which queues are missing: a question over AMQP is an error in the log of the broker, too.
    """
    session.forget_types()
    existing = session.management.queues() if session.management else None
    plan = session.plan(existing=existing)
    expiring = {queue.name for queue in plan.queues if "x-expires" in dict(queue.arguments)}
    known = {queue.name for queue in plan.queues} | {binding.queue for binding in plan.bindings}
    gone = set() if existing is None else known.difference(existing, expiring)
    left_out = expiring | gone
    quiet = replace(
        plan,
        queues=tuple(queue for queue in plan.queues if queue.name not in left_out),
        bindings=tuple(binding for binding in plan.bindings if binding.queue not in left_out),
    )
    drifts = [*map(missing_queue, sorted(gone)), *find(session.connection, quiet, session.management)]
    facts = _facts_of(session, drifts)
    missing = tuple(drift.name for drift in drifts if drift.kind == "missing" and _is_needed(session, drift.name))
    return Diagnosis(findings=tuple(findings(facts))), missing


@operation
def _facts(session: BrokerSession, monitor: Monitor) -> Facts:
    def step(done: int) -> None:
        monitor.progress(done, STEPS)
        if monitor.is_cancelled:
            raise Stopped(operation="The diagnosis")

    step(1)
    drifts = list(find(session.connection, session.plan(), session.management))
    step(2)
    facts = _facts_of(session, drifts)
    step(3)
    refused = forbidden(
        session.connection,
        session.names,
        work_queues=session.work_queues,
        declares=session.context.settings.declare,
        sends_by_name="" in exchanges_of_tasks(session.app),
    )
    facts = replace(facts, forbidden=tuple(refused))
    step(4)
    return facts


def _facts_of(session: BrokerSession, drifts: list[Drift]) -> Facts:
    """Return all facts but the permissions."""
    management = session.management
    server = Server.of(session.connection.connection.server_properties)
    queues = facts_of_queues(
        session.queues,
        session.types,
        in_api=management.queues() if management else {},
        policies=management.policies() if management else BrokerPolicies(),
    )
    return replace(
        facts_of_app(session.app, session.queues),
        product=server.product,
        version=server.numbers,
        queues=queues,
        missing=tuple(drift.name for drift in drifts if drift.kind == "missing"),
        differences=tuple(drift.fact for drift in drifts if _is_difference(session, drift)),
        unknown_types=tuple(sorted(name for name, kind in session.types.items() if kind is None)),
        no_management=session.no_management,
        strangers=_strangers(session),
    )


def _strangers(session: BrokerSession) -> tuple[str, ...]:
    """Return the work queues under our prefix that the app does not know."""
    if session.management is None:
        return ()
    known = {*(queue.alias or queue.name for queue in session.queues), *known_work_queues(session.app)}
    return tuple(sorted(set(all_dead_letter_queues(session.management, session.names).values()) - known))


def _is_difference(session: BrokerSession, drift: Drift) -> bool:
    """Whether a drift is worth a finding. A missing lane is made when a retry needs it; a missing rung is not."""
    if drift.kind == "missing":
        lane = session.names.lane_of(drift.name)
        return lane is not None and lane.is_rung
    return drift.kind in {"mismatch", "unbound", "policy"}


def _is_needed(session: BrokerSession, name: str) -> bool:
    """Whether a missing object is a fault: a lane is not, because a worker makes it when a retry needs it."""
    lane = session.names.lane_of(name)
    return lane is None or lane.is_rung
