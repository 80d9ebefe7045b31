"""What the doctor checks of an app without its broker: tasks, settings and work queues."""

from __future__ import annotations

import dis
import inspect
from dataclasses import replace
from datetime import timedelta
from types import CodeType, MappingProxyType
from typing import TYPE_CHECKING, Any

from celery import Task

from celery_dlx_retry.app.context import context_of
from celery_dlx_retry.app.task_options import is_ours
from celery_dlx_retry.broker.work_queues import declared_kind
from celery_dlx_retry.celery_compat import task_class_of
from celery_dlx_retry.doctor.facts import Facts, TaskFacts, WorkQueueFacts
from celery_dlx_retry.errors import DelayTooLong
from celery_dlx_retry.policy.policies import as_policy
from celery_dlx_retry.topology.rabbitmq_policies import BrokerPolicies

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from kombu.entity import Queue

    from celery_dlx_retry.settings import QueueType


_TRANSIENT = {1, "1", "transient"}
_MAPS = {"map", "starmap", "chunks", "xmap", "xstarmap"}
_STRATEGY = "celery.worker.strategy:default"


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
        maps_are_ours=is_ours(app.tasks.get("celery.map")),
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
            strategy=_strategy(task),
            mapped=tuple(_mapped(task)),
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


def _strategy(task: Any) -> str:
    own = str(task.Strategy)
    return "" if own == _STRATEGY or is_ours(task) else own


def _mapped(task: Any) -> Iterator[str]:
    """Yield the names of tasks that the body of this task runs by ``.map()`` and the like."""
    body = inspect.unwrap(task.run)
    code, names = getattr(body, "__code__", None), getattr(body, "__globals__", {})
    before = None
    for step in dis.get_instructions(code) if isinstance(code, CodeType) else ():
        if step.argval in _MAPS and "ATTR" in step.opname + "ATTR" * (step.opname == "LOAD_METHOD"):
            mapped = names.get(before.argval) if before and before.opname == "LOAD_GLOBAL" else None
            if isinstance(mapped, Task):
                yield str(mapped.name)
        before = step


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
