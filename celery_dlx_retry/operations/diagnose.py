"""Diagnose an app and its broker: find what loses tasks, repeats them for ever or blocks a worker."""

from __future__ import annotations

import difflib
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from kombu.entity import Queue

from celery_dlx_retry.app.context import context_of
from celery_dlx_retry.app.routes import exchanges_of_tasks
from celery_dlx_retry.broker.find_drift import find, missing_queue
from celery_dlx_retry.broker.permission_probe import forbidden
from celery_dlx_retry.doctor.facts import Facts, WorkQueueFacts
from celery_dlx_retry.doctor.rules import ALL_RULES, Finding, findings
from celery_dlx_retry.errors import Forbidden, InvalidSetting
from celery_dlx_retry.operations.app_facts import facts_of_app, facts_of_queues, facts_of_tasks
from celery_dlx_retry.operations.app_queues import (
    known_work_queues,
    load_tasks,
    queues_on_broker,
    type_in_api,
    work_queues_of,
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
from celery_dlx_retry.operations.overview import OverviewReader
from celery_dlx_retry.operations.session import BrokerSession, open_session, operation
from celery_dlx_retry.topology.broker_requirements import Server
from celery_dlx_retry.topology.rabbitmq_policies import BrokerPolicies

if TYPE_CHECKING:
    from collections.abc import Iterable

    from celery import Celery

    from celery_dlx_retry.topology.drift import Drift


#: ``Monitor.progress`` is called with the number of steps that are done: app, topology, queues, permissions.
STEPS = 4

# Of a queue that does not exist, nothing is known that a rule could be about.
_KEPT = {"dead-letter-exchange": "?"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What was found, the gravest first."""

    findings: tuple[Finding, ...]

    @property
    def grave(self) -> tuple[Finding, ...]:
        """All findings but those for information, and those that dlx_doctor_accept names."""
        return tuple(it for it in self.findings if it.severity != "info" and not it.accepted)


def diagnose(
    app: Celery, *, queues: Iterable[str] = (), management_url: str | None = None, monitor: Monitor = NO_MONITOR
) -> Diagnosis:
    """Look at the app, its queues and its broker. This changes nothing, and works for a broker that is down.

    Raise Stopped if the caller cancels it.
    """
    named = list(queues)
    load_tasks(app)
    require_readable_url(app)
    accept = _accepted(app)
    if not is_rabbitmq(app):
        facts = Facts(transport=transport_of(app), product="", tasks=facts_of_tasks(app))
    elif unreachable := _unreachable(app):
        found = facts_of_app(app, work_queues_of(app, named))
        facts = replace(found, product="", version=(), unreachable=unreachable)
    else:
        with open_session(app, queues=named, management_url=management_url) as session:
            facts = _facts(session, monitor)
    return Diagnosis(findings=tuple(findings(facts, accept=accept)))


def _accepted(app: Celery) -> tuple[str, ...]:
    """Return dlx_doctor_accept; raise InvalidSetting for a code that no rule has."""
    accept = context_of(app).settings.doctor_accept
    codes = {rule.code for rule in ALL_RULES}
    for entry in accept:
        if entry.partition(":")[0] not in codes:
            close = difflib.get_close_matches(entry.partition(":")[0], codes, n=1)
            wanted = f"a code of the doctor{f', perhaps {close[0]!r}' if close else ''}; its page lists them"
            raise InvalidSetting(setting="dlx_doctor_accept", value=entry, wanted=wanted)
    return accept


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
    try:
        now = OverviewReader(session).facts()
    except Forbidden:  # the broker user may not look at a queue
        return facts
    return replace(
        facts,
        queues=_with_counts(facts.queues, now.queues, session),
        orphans=now.orphans,
        overdue_ms=now.overdue_ms,
        nodes=now.nodes,
        **_cluster(session),
    )


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


def _with_counts(
    known: tuple[WorkQueueFacts, ...], counted: tuple[WorkQueueFacts, ...], session: BrokerSession
) -> tuple[WorkQueueFacts, ...]:
    """Return what both know of each queue; the HTTP API has the arguments of those that the app does not know."""
    names = ("exists", "was_used", "ready", "consumers", "waiting", "dead_lately")
    counts = {it.name: {name: getattr(it, name) for name in names} for it in counted}
    facts = session.management.queues() if session.management else {}
    others = [it for it in counts if it in facts and it not in {queue.name for queue in session.queues}]
    found = facts_of_queues([Queue(it) for it in others], {it: type_in_api(facts, it) for it in others}, in_api=facts)
    mine = tuple(replace(it, **counts.get(it.name, {})) for it in (*known, *found))
    missing = {it.name for it in mine} | {queue.name for queue in session.queues}
    return (*mine, *(replace(it, arguments=_KEPT) for it in counted if it.name not in missing and not it.exists))


def _cluster(session: BrokerSession) -> dict[str, Any]:
    """Return where the leaders of quorum lanes are, and how many queues dead-letter at least once."""
    facts = session.management.queues() if session.management else {}
    leaders = Counter(
        it["leader"] for name, it in facts.items() if it.get("leader") and session.names.lane_of(name) is not None
    )
    strategies = [it.get("arguments", {}).get("x-dead-letter-strategy") for it in facts.values()]
    return {"lane_leaders": leaders, "at_least_once": strategies.count("at-least-once")}


def _strangers(session: BrokerSession) -> tuple[str, ...]:
    """Return the work queues under our prefix that the app does not know."""
    known = {*(queue.alias or queue.name for queue in session.queues), *known_work_queues(session.app)}
    return tuple(sorted(set(queues_on_broker(session.management, session.names).dead.values()) - known))


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
