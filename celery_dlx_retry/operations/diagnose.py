"""Diagnose an app and its broker: find what loses tasks, repeats them for ever or blocks a worker."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, replace
from datetime import timedelta
from types import CodeType, MappingProxyType
from typing import TYPE_CHECKING, Any

from celery_dlx_retry.app.context import context_of
from celery_dlx_retry.app.routes import exchanges_of_tasks
from celery_dlx_retry.app.task_options import is_ours
from celery_dlx_retry.broker.declare import find, missing_queue
from celery_dlx_retry.broker.permission_probe import forbidden
from celery_dlx_retry.broker.work_queues import declared_kind
from celery_dlx_retry.celery_compat import task_class_of
from celery_dlx_retry.doctor.facts import Facts, TaskFacts, WorkQueueFacts
from celery_dlx_retry.doctor.rules import Finding, findings
from celery_dlx_retry.errors import DelayTooLong
from celery_dlx_retry.operations.app_queues import (
    known_work_queues,
    load_tasks,
    queues_on_broker,
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
from celery_dlx_retry.operations.session import BrokerSession, open_session, operation
from celery_dlx_retry.policy.policies import as_policy
from celery_dlx_retry.topology.broker_requirements import Server
from celery_dlx_retry.topology.rabbitmq_policies import BrokerPolicies

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from celery import Celery
    from kombu.entity import Queue

    from celery_dlx_retry.settings import QueueType
    from celery_dlx_retry.topology.drift import Drift


#: ``Monitor.progress`` is called with the number of steps that are done: app, topology, queues, permissions.
STEPS = 4

_TRANSIENT = {1, "1", "transient"}


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
        found = facts_of_app(app, work_queues_of(app, named))
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
    known = {*(queue.alias or queue.name for queue in session.queues), *known_work_queues(session.app)}
    return tuple(sorted(set(queues_on_broker(session.management, session.names).dead.values()) - known))


def _is_difference(session: BrokerSession, drift: Drift) -> bool:
    """Whether a drift is worth a finding. A missing lane is made when a retry needs it; a missing rung is not."""
    if drift.kind == "missing":
        lane = session.names.lane_of(drift.name)
        return lane is not None and lane.is_rung
    return drift.kind in {"mismatch", "unbound", "policy"}


def facts_of_app(app: Any, queues: list[Queue]) -> Facts:
    """Return all facts that need no broker."""
    conf, context = app.conf, context_of(app)
    planned = {queue.name for queue in context.plan(queues).queues}
    return Facts(
        transport="amqp",
        tasks=facts_of_tasks(app),
        queues=facts_of_queues(queues, {queue.name: declared_kind(queue) for queue in queues}),
        lanes=context.settings.queue_type,
        consumed_by_mistake=tuple(
            queue.name for queue in queues if queue.name in planned or context.names.lane_of(queue.name)
        ),
        confirm_publish=bool((conf.broker_transport_options or {}).get("confirm_publish")),
        transient_messages=conf.task_default_delivery_mode in _TRANSIENT,
        detects_quorum=bool(conf.get("worker_detect_quorum_queues", True)),
        prefetch_multiplier=int(conf.worker_prefetch_multiplier),
        longest_wait_ms=max([*context.exact_lanes, *_jittered_ms(app)]),
        result_expires_ms=_result_expires_ms(conf),
        countdowns=tuple(_countdowns(app)),
        declares=context.settings.declare,
        too_long=_too_long(app),
    )


def facts_of_tasks(app: Any) -> tuple[TaskFacts, ...]:
    """Return the facts of all tasks but Celery's own."""
    return tuple(
        TaskFacts(
            name=task.name,
            is_ours=is_ours(task),
            acks_late=bool(task.acks_late),
            reject_on_worker_lost=bool(task.reject_on_worker_lost),
            retries=bool(getattr(task, "autoretry_for", ())) or _calls_retry(task),
            waits_ms=tuple(_waits_ms(task)),
            time_limit_ms=_ms(task.time_limit or app.conf.task_time_limit),
            left_out=_left_out(task, app),
        )
        for name, task in sorted(app.tasks.items())
        if not name.startswith("celery.")
    )


def facts_of_queues(
    queues: list[Queue],
    types: Mapping[str, QueueType | None],
    *,
    in_api: Mapping[str, dict[str, Any]] = MappingProxyType({}),
    policies: BrokerPolicies = BrokerPolicies(),  # noqa: B008 - a value
) -> tuple[WorkQueueFacts, ...]:
    """Return the facts of work queues, from the app and from the HTTP API."""
    return tuple(
        WorkQueueFacts(
            name=queue.name,
            kind=types[queue.name] or "classic",
            durable=bool(in_api.get(queue.name, {}).get("durable", queue.durable)),
            transient=queue.exchange.delivery_mode in _TRANSIENT,
            arguments={
                **policies.definition(queue.name, types[queue.name] or "classic"),
                **_arguments(queue, in_api.get(queue.name, {})),
            },
        )
        for queue in queues
        if not queue.alias  # a broadcast queue is meant to be short-lived
    )


def _too_long(app: Any) -> str:
    """Return the sentence with which a worker stops at its start; empty if it starts."""
    try:
        context_of(app).validate_delays()
    except DelayTooLong as problem:
        return str(problem)
    return ""


def _left_out(task: Any, app: Any) -> str:
    """Return the class in ``task_cls`` or ``app.Task``, if it is not Celery's and the task does not derive from it."""
    own = task_class_of(app)
    is_celerys = own.__module__.partition(".")[0] == "celery"
    return "" if is_celerys or isinstance(task, own) else f"{own.__module__}.{own.__qualname__}"


def _waits_ms(task: Any) -> list[int]:
    """Return the delays in the task's options."""
    waits = [task.default_retry_delay, (getattr(task, "retry_kwargs", None) or {}).get("countdown")]
    if getattr(task, "retry_backoff", False):
        waits.append(getattr(task, "retry_backoff_max", 600))
    return [ms for wait in waits if (ms := _ms(wait)) is not None]


def _calls_retry(task: Any) -> bool:
    """Whether the task's body contains the name ``retry``."""
    body = inspect.unwrap(task.run)
    code = getattr(body, "__code__", None)
    return isinstance(code, CodeType) and "retry" in _names_in(code)


def _names_in(code: CodeType) -> set[str]:
    inner = [_names_in(constant) for constant in code.co_consts if isinstance(constant, CodeType)]
    return set(code.co_names).union(*inner)


def _jittered_ms(app: Any) -> list[int]:
    """Return the delays of policies with jitter, which announce no lanes."""
    policies = [as_policy(task.policy) for task in app.tasks.values() if getattr(task, "policy", None) is not None]
    return [ms for policy in policies if policy.jitter for ms in replace(policy, jitter=None).known_delays_ms()]


def _arguments(queue: Queue, in_api: dict[str, Any]) -> dict[str, Any]:
    given = {
        "message-ttl": None if queue.message_ttl is None else int(queue.message_ttl * 1000),
        "max-length": queue.max_length,
        "max-length-bytes": queue.max_length_bytes,
    }
    named = {**(queue.queue_arguments or {}), **in_api.get("arguments", {})}
    return {
        **{key: value for key, value in given.items() if value is not None},
        **{key.removeprefix("x-"): value for key, value in named.items()},
    }


def _countdowns(app: Any) -> list[tuple[str, int]]:
    """Return the entries of the beat schedule whose countdown a worker holds; ours wait in the broker."""
    found = []
    for name, entry in (app.conf.beat_schedule or {}).items():
        options = (entry.get("options") if isinstance(entry, dict) else None) or {}
        task = app.tasks.get(entry.get("task")) if isinstance(entry, dict) else None
        waits_in_broker = is_ours(task) and context_of(app).settings.countdown
        if (ms := _ms(options.get("countdown"))) is not None and not waits_in_broker:
            found.append((str(name), ms))
    return found


def _result_expires_ms(conf: Any) -> int | None:
    if not conf.result_backend or conf.task_ignore_result:
        return None
    return _ms(conf.result_expires) or None


def _ms(value: Any) -> int | None:
    if isinstance(value, timedelta):
        value = value.total_seconds()
    return int(value * 1000) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _is_needed(session: BrokerSession, name: str) -> bool:
    """Whether a missing object is a fault: a lane is not, because a worker makes it when a retry needs it."""
    lane = session.names.lane_of(name)
    return lane is None or lane.is_rung
