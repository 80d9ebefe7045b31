"""``celery dlx doctor``: what bites in this app and this broker."""

from __future__ import annotations

import inspect
from collections import Counter
from dataclasses import asdict, replace
from datetime import timedelta
from types import CodeType, MappingProxyType
from typing import TYPE_CHECKING, Any

import click

from celery_dlx_retry.app.context import context_of
from celery_dlx_retry.broker.find_drift import find
from celery_dlx_retry.broker.permission_probe import forbidden
from celery_dlx_retry.broker.work_queues import declared_kind
from celery_dlx_retry.cli.context import (
    all_dead_letter_queues,
    connect,
    connection_of,
    insist_on_sound_url,
    is_rabbitmq,
    known_work_queues,
    management_option,
    queues_of,
    queues_option,
    targeting,
    transport_of,
)
from celery_dlx_retry.cli.errors import one_sentence
from celery_dlx_retry.cli.output import counted, echo, json_line, json_option, table
from celery_dlx_retry.doctor.facts import Facts, TaskFacts, WorkQueueFacts
from celery_dlx_retry.doctor.rules import findings
from celery_dlx_retry.errors import DelayTooLong
from celery_dlx_retry.policy.policies import as_policy
from celery_dlx_retry.topology.broker_requirements import Server
from celery_dlx_retry.topology.rabbitmq_policies import BrokerPolicies
from celery_dlx_retry.worker.routes import exchanges_of_tasks
from celery_dlx_retry.worker.task import DLXRetryTask

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kombu.entity import Queue

    from celery_dlx_retry.cli.context import Target
    from celery_dlx_retry.doctor.rules import Finding
    from celery_dlx_retry.settings import QueueType
    from celery_dlx_retry.topology.drift import Drift

_TRANSIENT = {1, "1", "transient"}


@click.command()
@queues_option
@management_option
@json_option
@click.pass_context
def doctor(ctx: click.Context, queue_names: str | None, management_url: str | None, *, as_json: bool) -> None:
    """Find what loses, loops or blocks; nothing is changed. Exit code 1 unless all that is found is information."""
    app = ctx.obj.app
    app.loader.import_default_modules()
    app.finalize()
    insist_on_sound_url(app)
    if is_rabbitmq(app):
        queues = queues_of(app, queue_names)
        if unreachable := _unreachable(app):
            facts = replace(_facts_of_app(app, queues), product="", version=(), unreachable=unreachable)
        else:
            with targeting(ctx, queue_names, management_url) as target:
                facts = _facts(target)
    else:
        facts = Facts(transport=transport_of(app), product="", tasks=_tasks(app))
    found = findings(facts)
    if as_json:
        for finding in found:
            json_line(asdict(finding))
    elif found:
        table(
            ("severity", "code", "fact", "consequence", "cure"),
            [(it.severity, it.code, it.fact, it.consequence, it.cure) for it in found],
        )
    grave = [finding for finding in found if finding.severity != "info"]
    if not as_json:
        bites = f"{counted(len(grave), 'finding')} that {'bites' if len(grave) == 1 else 'bite'}"
        echo(f"{bites if grave else 'Nothing that bites'}: {_tally(found)}.")
    if grave:
        ctx.exit(1)


def _tally(found: list[Finding]) -> str:
    count = Counter(finding.severity for finding in found)
    return (
        f"{counted(count['error'], 'error')}, {counted(count['warning'], 'warning')}; {count['info']} for information"
    )


def _unreachable(app: Any) -> str:
    """Why no connection can be made; empty if one can."""
    try:
        with one_sentence(app), connection_of(app) as connection:
            connect(connection)
    except click.ClickException as problem:
        return problem.format_message()
    return ""


def _facts_of_app(app: Any, queues: list[Queue]) -> Facts:
    """All that needs no broker to be known."""
    conf, context = app.conf, context_of(app)
    ours = {queue.name for queue in context.plan(queues).queues}
    return Facts(
        transport="amqp",
        tasks=_tasks(app),
        queues=_queues(queues, {queue.name: declared_kind(queue) for queue in queues}),
        lanes=context.settings.queue_type,
        consumed_by_mistake=tuple(
            queue.name for queue in queues if queue.name in ours or context.names.lane_of(queue.name)
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


def _too_long(app: Any) -> str:
    """The sentence with which a worker stops; empty if it starts."""
    try:
        context_of(app).validate_delays()
    except DelayTooLong as problem:
        return str(problem)
    return ""


def _facts(target: Target) -> Facts:
    server = Server.of(target.connection.connection.server_properties)
    drifts = list(find(target.connection, target.plan(), target.management))
    return replace(
        _facts_of_app(target.app, target.queues),
        product=server.product,
        version=server.numbers,
        queues=_queues(
            target.queues,
            target.types,
            told=target.management.queues() if target.management else {},
            policies=target.management.policies() if target.management else BrokerPolicies(),
        ),
        forbidden=tuple(
            forbidden(
                target.connection,
                target.names,
                work_queues=target.work_queues,
                declares=target.context.settings.declare,
                sends_by_name="" in exchanges_of_tasks(target.app),
            )
        ),
        missing=tuple(drift.name for drift in drifts if drift.kind == "missing"),
        differences=tuple(
            drift.fact
            for drift in drifts
            # A lane that is missing is declared when it is needed; without one of its rungs the ladder is early.
            if drift.kind in {"mismatch", "unbound", "policy"} or (drift.kind == "missing" and _is_rung(target, drift))
        ),
        unknown_types=tuple(sorted(name for name, kind in target.types.items() if kind is None)),
        no_management=target.no_management,
        strangers=tuple(_strangers(target)),
    )


def _strangers(target: Target) -> list[str]:
    if target.management is None:
        return []
    known = {*(queue.alias or queue.name for queue in target.queues), *known_work_queues(target.app)}
    return sorted(set(all_dead_letter_queues(target.management, target.names).values()) - known)


def _is_rung(target: Target, drift: Drift) -> bool:
    lane = target.names.lane_of(drift.name)
    return lane is not None and lane.is_rung


def _tasks(app: Any) -> tuple[TaskFacts, ...]:
    return tuple(
        TaskFacts(
            name=task.name,
            is_ours=isinstance(task, DLXRetryTask),
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


def _left_out(task: Any, app: Any) -> str:
    """The class that ``task_cls`` or ``app.Task`` names, if it is not Celery's own and the task has it not."""
    own = next(kind for kind in app.Task.__mro__ if "_app" not in vars(kind))
    is_celerys = own.__module__.partition(".")[0] == "celery"
    return "" if is_celerys or isinstance(task, own) else f"{own.__module__}.{own.__qualname__}"


def _waits_ms(task: Any) -> list[int]:
    """The waits that its options name."""
    waits = [task.default_retry_delay, (getattr(task, "retry_kwargs", None) or {}).get("countdown")]
    if getattr(task, "retry_backoff", False):
        waits.append(getattr(task, "retry_backoff_max", 600))
    return [ms for wait in waits if (ms := _ms(wait)) is not None]


def _calls_retry(task: Any) -> bool:
    """Whether its body says ``.retry`` anywhere."""
    body = inspect.unwrap(getattr(task, "_orig_run", task.run))
    code = getattr(body, "__code__", None)
    return isinstance(code, CodeType) and "retry" in _names_in(code)


def _names_in(code: CodeType) -> set[str]:
    inner = [_names_in(constant) for constant in code.co_consts if isinstance(constant, CodeType)]
    return set(code.co_names).union(*inner)


def _jittered_ms(app: Any) -> list[int]:
    """What policies with jitter may come to, which no lane announces."""
    policies = [as_policy(task.policy) for task in app.tasks.values() if getattr(task, "policy", None) is not None]
    return [ms for policy in policies if policy.jitter for ms in replace(policy, jitter=None).known_delays_ms()]


def _queues(
    queues: list[Queue],
    types: Mapping[str, QueueType | None],
    *,
    told: Mapping[str, dict[str, Any]] = MappingProxyType({}),
    policies: BrokerPolicies = BrokerPolicies(),  # noqa: B008 - a value
) -> tuple[WorkQueueFacts, ...]:
    return tuple(
        WorkQueueFacts(
            name=queue.name,
            kind=types[queue.name] or "classic",
            durable=bool(told.get(queue.name, {}).get("durable", queue.durable)),
            transient=queue.exchange.delivery_mode in _TRANSIENT,
            arguments={
                **policies.definition(queue.name, types[queue.name] or "classic"),
                **_arguments(queue, told.get(queue.name, {})),
            },
        )
        for queue in queues
        if not queue.alias  # a broadcast queue is meant to be of the moment
    )


def _arguments(queue: Queue, told: dict[str, Any]) -> dict[str, Any]:
    given = {
        "message-ttl": None if queue.message_ttl is None else int(queue.message_ttl * 1000),
        "max-length": queue.max_length,
        "max-length-bytes": queue.max_length_bytes,
    }
    named = {**(queue.queue_arguments or {}), **told.get("arguments", {})}
    return {
        **{key: value for key, value in given.items() if value is not None},
        **{key.removeprefix("x-"): value for key, value in named.items()},
    }


def _countdowns(app: Any) -> list[tuple[str, int]]:
    """Of the schedule's entries that wait in a worker; those of our tasks wait in the broker."""
    found = []
    for name, entry in (app.conf.beat_schedule or {}).items():
        options = (entry.get("options") if isinstance(entry, dict) else None) or {}
        task = app.tasks.get(entry.get("task")) if isinstance(entry, dict) else None
        is_ours = isinstance(task, DLXRetryTask) and context_of(app).settings.countdown
        if (ms := _ms(options.get("countdown"))) is not None and not is_ours:
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
