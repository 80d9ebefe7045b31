"""The facts that the doctor checks: an app and its broker, as values."""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - a dataclass field
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFacts:
    """One task. ``waits_ms`` are its known delays; they pass in the worker unless the task is ours."""

    name: str
    is_ours: bool = True
    acks_late: bool = True
    reject_on_worker_lost: bool = False
    retries: bool = False
    waits_ms: tuple[int, ...] = ()
    time_limit_ms: int | None = None
    #: The app's own task class, if it has one and this task does not derive from it.
    left_out: str = ""
    #: A Strategy that is not Celery's; only for tasks that are not ours, because a worker refuses ours.
    strategy: str = ""
    #: Tasks that its body, or the schedule, runs by ``.map()``, ``.starmap()`` or ``.chunks()``.
    mapped: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkQueueFacts:
    """One work queue: from the app, and from the HTTP API where it answers."""

    name: str
    kind: Literal["classic", "quorum"] = "classic"
    durable: bool = True
    transient: bool = False
    #: Arguments without their ``x-``, and what policies set.
    arguments: Mapping[str, Any] = field(default_factory=dict)
    exists: bool = True
    #: Its dead-letter queue exists, or tasks wait for it: a worker has consumed it.
    was_used: bool = False
    ready: int = 0
    consumers: int = 1
    #: Tasks that wait for it in lanes that it does not share.
    waiting: int = 0
    #: Letters that died in the last ten minutes.
    dead_lately: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """One node of the cluster."""

    name: str
    is_running: bool = True
    #: ``memory`` and ``disk``.
    alarms: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """All facts for the checks."""

    transport: str = "amqp"
    product: str = "RabbitMQ"
    version: tuple[int, ...] = (4, 3, 6)
    tasks: tuple[TaskFacts, ...] = (TaskFacts(name="a task"),)
    queues: tuple[WorkQueueFacts, ...] = ()
    lanes: Literal["classic", "quorum"] = "quorum"
    consumed_by_mistake: tuple[str, ...] = ()
    confirm_publish: bool = True
    transient_messages: bool = False
    detects_quorum: bool = True
    prefetch_multiplier: int = 4
    longest_wait_ms: int = 0
    #: None: results are not stored, or do not expire.
    result_expires_ms: int | None = None
    #: Entries of the schedule with a countdown: (name, ms).
    countdowns: tuple[tuple[str, int], ...] = ()
    declares: bool = True
    forbidden: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    differences: tuple[str, ...] = ()
    #: Work queues whose type the broker did not name.
    unknown_types: tuple[str, ...] = ()
    no_management: str = ""
    #: The error with which a worker stops for a delay above dlx_max_delay.
    too_long: str = ""
    #: Why the broker does not answer; then product and version are not known.
    unreachable: str = ""
    #: Work queues under our prefix that the app does not know.
    strangers: tuple[str, ...] = ()
    orphans: int = 0
    #: Lane -> for how many ms its first task is overdue.
    overdue_ms: Mapping[str, int] = field(default_factory=dict)
    #: Task -> letters that died in the last ten minutes because it kills its process again and again.
    crash_loops: Mapping[str, int] = field(default_factory=dict)
    nodes: tuple[NodeFacts, ...] = ()
    #: Node -> quorum lanes whose leader it is.
    lane_leaders: Mapping[str, int] = field(default_factory=dict)
    #: Queues of the virtual host with at-least-once dead-lettering.
    at_least_once: int = 0
    #: Whether Celery's own tasks, such as ``celery.map``, are ours, too.
    maps_are_ours: bool = False
