"""The topology of an app: plan it, compare it with the broker, declare it, and find the policies that it needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from celery_dlx_retry.app.context import context_of
from celery_dlx_retry.broker.counts import counts
from celery_dlx_retry.broker.find_drift import find
from celery_dlx_retry.broker.work_queues import declare_if_missing, has_delayed_retry
from celery_dlx_retry.operations.app_queues import work_queues_of
from celery_dlx_retry.operations.monitor import NO_MONITOR, Monitor
from celery_dlx_retry.operations.session import BrokerSession, operation
from celery_dlx_retry.topology.broker_requirements import Server, problems
from celery_dlx_retry.topology.rabbitmq_policies import BrokerPolicies, DeadLetterPolicy, dead_letter_policy

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from celery import Celery

    from celery_dlx_retry.topology.drift import Drift
    from celery_dlx_retry.topology.specs import Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a worker would declare. ``topology.render`` writes it in other notations."""

    topology: Topology
    vhost: str
    #: The work queues that it is for.
    work_queues: tuple[str, ...]

    @property
    def wait_queues(self) -> int:
        """How many of the queues are wait queues."""
        return sum("x-message-ttl" in dict(queue.arguments) for queue in self.topology.queues)


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """The broker compared with the plan."""

    drifts: tuple[Drift, ...]
    #: Why bindings and policies were not checked; empty if they were.
    no_management: str = ""

    @property
    def differences(self) -> tuple[Drift, ...]:
        """What differs from the plan."""
        return tuple(drift for drift in self.drifts if drift.kind != "unchecked")

    @property
    def unchecked(self) -> tuple[Drift, ...]:
        """What the broker user has no permission to look at."""
        return tuple(drift for drift in self.drifts if drift.kind == "unchecked")


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """How many objects the declared plan has."""

    prefix: str
    exchanges: int
    queues: int
    bindings: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePolicy:
    """A work queue with its dead-letter exchange, or with the policy that attaches one."""

    queue: str
    dead_letter_exchange: str = ""
    policy: DeadLetterPolicy | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePolicies:
    """The policies that the work queues of a session need."""

    queues: tuple[QueuePolicy, ...]
    #: Named work queues that do not exist.
    missing: tuple[str, ...]
    #: For ``DeadLetterPolicy.http()``.
    management_url: str
    user: str
    #: Why it is not known which policies the queues have; empty if it is.
    no_management: str = ""


def make_plan(app: Celery, *, queues: Iterable[str] = (), ladder: bool = False) -> Plan:
    """Return what a worker with these queues would declare. This needs no broker.

    Raise DelayTooLong, as the worker does, if a task asks for a delay that is longer than dlx_max_delay.
    """
    consumed, context = work_queues_of(app, queues), context_of(app)
    context.validate_delays()
    return Plan(
        topology=context.plan(consumed, ladder=ladder),
        vhost=app.connection_for_read().virtual_host or "/",
        work_queues=tuple(queue.name for queue in consumed),
    )


@operation
def check_topology(session: BrokerSession, *, ladder: bool = False) -> Check:
    """Compare the broker with the plan. This changes nothing."""
    session.context.validate_delays()
    found = find(session.connection, session.plan(ladder=ladder), session.management)
    return Check(drifts=tuple(found), no_management=session.no_management)


@operation
def declare_topology(session: BrokerSession, *, ladder: bool = False, monitor: Monitor = NO_MONITOR) -> Declared:
    """Declare the plan, and the work queues that do not exist. Existing objects stay as they are.

    Raise Unsuitable, before anything is declared, if the broker cannot do what the plan needs.
    """
    session.context.validate_delays()
    server = Server.of(session.connection.connection.server_properties)
    delayed = [queue.name for queue in session.queues if has_delayed_retry(queue)]
    for problem in problems(server, lanes=session.names.kind, delayed_retry=delayed):
        raise problem
    facts: dict[str, Any] = {}
    outcome = {"outcome": "interrupted"}
    try:
        for queue in session.queues:
            declare_if_missing(session.connection, queue)
        ladder = ladder or session.has_ladder
        topology = session.plan(ladder=ladder)
        facts = {kind: len(getattr(topology, kind)) for kind in ("exchanges", "queues", "bindings")}
        session.context.declare(session.connection, session.queues, ladder=ladder)
        outcome = {}
    finally:
        monitor.audit("declare", by=session.operator, prefix=session.names.prefix, **facts, **outcome)
    return Declared(prefix=session.names.prefix, **facts)


@operation
def find_policies(session: BrokerSession) -> QueuePolicies:
    """Return, for each work queue, the policy that attaches a dead-letter exchange to it. This changes nothing."""
    existing = counts(session.connection, [queue.name for queue in session.queues])
    return QueuePolicies(
        queues=tuple(_policies(session)),
        missing=tuple(it.name for it in session.queues if it.name not in existing) if session.named else (),
        management_url=session.management.url if session.management else "http://localhost:15672",
        user=session.connection.userid or "guest",
        no_management=session.no_management,
    )


def _policies(session: BrokerSession) -> Iterator[QueuePolicy]:
    seen = session.management.queues() if session.management else {}
    policies = session.management.policies() if session.management else BrokerPolicies()
    for queue, work_queue in zip(session.queues, session.work_queues, strict=True):
        facts: dict[str, Any] = seen.get(queue.name, {})
        arguments = {**(queue.queue_arguments or {}), **facts.get("arguments", {})}
        kind = session.types[queue.name] or "classic"
        current = policies.of(queue.name, kind)
        exchange = arguments.get("x-dead-letter-exchange", current.get("definition", {}).get("dead-letter-exchange"))
        if exchange is not None:
            yield QueuePolicy(queue=queue.name, dead_letter_exchange=exchange)
            continue
        policy = dead_letter_policy(
            session.names,
            work_queue,
            kind=kind,
            vhost=session.vhost,
            arguments=arguments,
            policy=current.get("name", ""),
            definition=current.get("definition"),
            priority=current.get("priority", -1),
        )
        yield QueuePolicy(queue=queue.name, policy=policy)
