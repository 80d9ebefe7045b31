"""Metrics for Prometheus, counted in the main process of a worker, or in any other process that installs them.

``celery worker --dlx-metrics-port 9101`` serves them. If your worker serves metrics already, install them there::

    from celery_dlx_retry.contrib.prometheus import install

    install()  # or install(my_registry)

No label has the text of an error, the id of a task, or a value that a sender can choose freely.
"""

from __future__ import annotations

import os
import time
from threading import Lock
from typing import TYPE_CHECKING

try:
    from prometheus_client import REGISTRY, Counter, Gauge, Histogram, start_http_server
except ModuleNotFoundError as exc:
    raise ModuleNotFoundError(
        "The package prometheus_client is not installed. Install it with `pip install 'celery-dlx-retry[prometheus]'`"
    ) from exc

from celery_dlx_retry import events
from celery_dlx_retry.errors import MetricsNotServed
from celery_dlx_retry.policy.reasons import Reason
from celery_dlx_retry.values.label_values import MOST_EXCEPTIONS, MOST_NAMES, MOST_QUEUES, UNKNOWN, Bounded

if TYPE_CHECKING:
    from collections.abc import Callable

    from prometheus_client import CollectorRegistry

SHARED_BUDGET = "dlx_budget"
_MANY = 100
# The sender of such a message chose the name of the task.
_WITHOUT_TASK = frozenset(map(str, (Reason.UNKNOWN_TASK, Reason.INVALID, Reason.UNDECODABLE)))
_MINUTES = (1, 5, 15, 60, 300, 900, 3600, 21600, 86400)
_LATENESS = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 180, 600)
_CONFIRM = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_ATTEMPTS = (1, 2, 3, 5, 8, 13, 21)
_TASK = ("name", "queue_name")
_STATES = {"closed": 0.0, "half open": 1.0, "open": 2.0}

_installed: dict[int, Metrics] = {}


def install(registry: CollectorRegistry = REGISTRY) -> Metrics:
    """Count the events of this process, and of the pool processes of its worker, in this registry.

    Call it in a module that the worker imports. You can call it again.
    """
    if id(registry) not in _installed:
        metrics = _installed[id(registry)] = Metrics(registry)
        events.subscribe(metrics, in_main=True)
    return _installed[id(registry)]


def serve(port: int, registry: CollectorRegistry = REGISTRY) -> None:
    """Install the metrics, and serve the registry over HTTP on this port. Raise MetricsNotServed if it is taken."""
    try:
        server, _ = start_http_server(port, registry=registry)
    except (OSError, OverflowError) as exc:
        problem = getattr(exc, "strerror", None) or str(exc)
        raise MetricsNotServed(port=port, problem=problem) from exc
    install(registry)
    # A pool process that outlives the main process must not hold its port.
    os.register_at_fork(after_in_child=server.socket.close)


class Metrics:
    """A subscriber that counts events in a registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._name, self._queue = Bounded(MOST_NAMES), Bounded(MOST_QUEUES)
        self._exception = Bounded(MOST_EXCEPTIONS)

        def counter(name: str, meaning: str, labels: tuple[str, ...]) -> Counter:
            return Counter(f"celery_dlx_{name}", meaning, labels, registry=registry)

        def histogram(name: str, meaning: str, labels: tuple[str, ...], buckets: tuple[float, ...]) -> Histogram:
            return Histogram(f"celery_dlx_{name}", meaning, labels, buckets=buckets, registry=registry)

        self._retries = counter("retries", "Retries that wait in a lane.", (*_TASK, "exception", "way"))
        self._dead = counter("dead_letters", "Messages that became dead letters.", (*_TASK, "exception", "reason"))
        self._recovered = counter("recovered", "Tasks that succeeded after at least one retry.", _TASK)
        self._parked = counter("parked", "Messages that an open breaker sent to wait.", _TASK)
        self._given_back = counter(
            "given_back", "Deliveries that went back to their queue, because the broker took no message.",
            (*_TASK, "cause"),
        )  # fmt: skip
        self._replayed = counter("replayed", "Dead letters that this process replayed.", _TASK)
        self._purged = counter("purged", "Dead letters that this process deleted.", ("queue_name",))
        self._edited = counter("edited", "Dead letters that this process edited.", ("queue_name",))
        self._delay = histogram("retry_delay_seconds", "How long retries wait.", ("name",), _MINUTES)
        self._lateness = histogram(
            "return_lateness_seconds", "How long after its time a worker received a retry.", ("way",), _LATENESS
        )
        self._attempts = histogram("attempts", "Attempts of tasks that recovered or died.", ("name", "end"), _ATTEMPTS)
        self._recovery = histogram(
            "recovery_seconds", "From the first failure of a task to its success.", ("name",), _MINUTES
        )
        self._confirm = histogram(
            "confirm_seconds", "Until the broker confirmed a retry or a dead letter.", (), _CONFIRM
        )
        self._breaker = Gauge(
            "celery_dlx_breaker_state", "The breaker of a task: 0 is closed, 1 half open, 2 open.", ("name",),
            registry=registry,
        )  # fmt: skip
        self._budget = Gauge(
            "celery_dlx_budget_remaining_ratio", "The part of the reserve of a budget that is left.", ("name",),
            registry=registry,
        )  # fmt: skip
        self._breakers, self._budgets = Worst(self._breaker, max, 0.0), Worst(self._budget, min, 1.0)
        self._take: dict[type, Callable[..., None]] = {
            events.RetryScheduled: self._on_retry,
            events.Returned: self._on_returned,
            events.DeadLettered: self._on_dead,
            events.Recovered: self._on_recovered,
            events.Parked: self._on_parked,
            events.GivenBack: self._on_given_back,
            events.BreakerChanged: self._on_breaker,
            events.BudgetChanged: self._on_budget,
            events.Replayed: self._on_replayed,
            events.Purged: self._on_purged,
            events.Edited: self._on_edited,
        }

    def __call__(self, event: events.Event, /) -> None:
        """Count one event."""
        take = self._take.get(type(event))
        if take is not None:
            take(event)

    def _on_retry(self, event: events.RetryScheduled) -> None:
        name = self._name(event.task)
        self._retries.labels(name, self._queue(event.queue), self._exception(event.error_type), event.way).inc()
        self._delay.labels(name).observe(event.delay_ms / 1000)
        self._confirm.observe(event.confirm_ms / 1000)

    def _on_returned(self, event: events.Returned) -> None:
        self._lateness.labels(event.way).observe(event.late_ms / 1000)

    def _on_dead(self, event: events.DeadLettered) -> None:
        name = UNKNOWN if event.reason in _WITHOUT_TASK else self._name(event.task)
        exception = self._exception(event.error_type)
        self._dead.labels(name, self._queue(event.queue), exception, str(event.reason)).inc()
        self._attempts.labels(name, "dead").observe(event.attempts)
        self._confirm.observe(event.confirm_ms / 1000)

    def _on_recovered(self, event: events.Recovered) -> None:
        name = self._name(event.task)
        self._recovered.labels(name, self._queue(event.queue)).inc()
        self._attempts.labels(name, "succeeded").observe(event.attempts)
        if event.first_failed_at_ms:
            self._recovery.labels(name).observe(max(0.0, time.time() - event.first_failed_at_ms / 1000))

    def _on_parked(self, event: events.Parked) -> None:
        self._parked.labels(self._name(event.task), self._queue(event.queue)).inc()

    def _on_given_back(self, event: events.GivenBack) -> None:
        self._given_back.labels(
            self._name(event.task), self._queue(event.queue), self._exception(event.cause)
        ).inc()  # fmt: skip

    def _on_breaker(self, event: events.BreakerChanged) -> None:
        self._breakers.set(self._name(event.task), event.task, event.pid, _STATES[event.state])

    def _on_budget(self, event: events.BudgetChanged) -> None:
        name = self._name(event.task) if event.task else SHARED_BUDGET
        self._budgets.set(name, event.task, event.pid, event.remaining)

    def _on_replayed(self, event: events.Replayed) -> None:
        self._replayed.labels(self._name(event.task), self._queue(event.queue)).inc()

    def _on_purged(self, event: events.Purged) -> None:
        self._purged.labels(self._queue(event.dead_letter_queue)).inc(event.count)

    def _on_edited(self, event: events.Edited) -> None:
        self._edited.labels(self._queue(event.dead_letter_queue)).inc()


class Worst:
    """Shows the worst value of all processes of a worker. A process that is gone does not count."""

    def __init__(self, gauge: Gauge, worst: Callable[..., float], rest: float) -> None:
        self._gauge, self._worst, self._rest = gauge, worst, rest
        self._values: dict[str, dict[tuple[str, int], float]] = {}
        self._lock = Lock()

    def set(self, name: str, task: str, pid: int, value: float) -> None:
        """Note the value of one process."""
        with self._lock:
            if (values := self._values.get(name)) is None:
                values = self._values[name] = {}
                self._gauge.labels(name).set_function(lambda: self._read(name))
            if len(values) >= _MANY:  # a worker that replaces its processes often, without a scrape
                self._values[name] = values = _of_living(values)
            values[task, pid] = value

    def _read(self, name: str) -> float:
        with self._lock:
            values = self._values[name] = _of_living(self._values[name])
        return self._worst(values.values(), default=self._rest)


def _of_living(values: dict[tuple[str, int], float]) -> dict[tuple[str, int], float]:
    return {(task, pid): value for (task, pid), value in values.items() if _lives(pid)}


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # it has another user by now
        return True
    return True
