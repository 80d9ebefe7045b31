"""What the doctor looks at: an app and its broker, as values."""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - a dataclass field
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFacts:
    """One task. ``waits_ms`` are the waits that it is known to ask for, in the worker unless it is ours."""

    name: str
    is_ours: bool = True
    acks_late: bool = True
    reject_on_worker_lost: bool = False
    retries: bool = False
    waits_ms: tuple[int, ...] = ()
    time_limit_ms: int | None = None
    #: The app's own task class, if it has one and this task does not derive from it.
    left_out: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkQueueFacts:
    """One work queue: what the app says, and over it what the HTTP API told."""

    name: str
    kind: Literal["classic", "quorum"] = "classic"
    durable: bool = True
    transient: bool = False
    #: Arguments without their ``x-``, and what policies set.
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """All that the rules look at."""

    transport: str = "amqp"
    product: str = "RabbitMQ"
    version: tuple[int, ...] = (4, 3)
    tasks: tuple[TaskFacts, ...] = (TaskFacts(name="a task"),)
    queues: tuple[WorkQueueFacts, ...] = ()
    lanes: Literal["classic", "quorum"] = "quorum"
    consumed_by_mistake: tuple[str, ...] = ()
    confirm_publish: bool = True
    transient_messages: bool = False
    detects_quorum: bool = True
    prefetch_multiplier: int = 4
    longest_wait_ms: int = 0
    #: None: results are not stored, or for ever.
    result_expires_ms: int | None = None
    #: What is sent with a countdown, and how long it is: (name of the schedule's entry, ms).
    countdowns: tuple[tuple[str, int], ...] = ()
    declares: bool = True
    forbidden: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    differences: tuple[str, ...] = ()
    #: Work queues whose type the broker did not tell.
    unknown_types: tuple[str, ...] = ()
    no_management: str = ""
    #: What a worker says to a delay that is beyond dlx_max_delay, and stops.
    too_long: str = ""
    #: Why the broker cannot be asked; product and version are not known then.
    unreachable: str = ""
    #: Work queues under our prefix that the app does not know.
    strangers: tuple[str, ...] = ()
