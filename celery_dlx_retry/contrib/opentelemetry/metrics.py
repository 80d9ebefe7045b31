"""Metrics for OpenTelemetry, counted in the main process of a worker for all of its processes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from celery_dlx_retry import events
from celery_dlx_retry.contrib.opentelemetry.attributes import (
    DESTINATION,
    ERROR_TYPE,
    OPERATION_DURATION,
    REASON,
    SYSTEM,
    TASK,
    WAY,
    operation,
)
from celery_dlx_retry.policy.reasons import Reason
from celery_dlx_retry.values.label_values import MOST_EXCEPTIONS, MOST_NAMES, MOST_QUEUES, UNKNOWN, Bounded

if TYPE_CHECKING:
    from collections.abc import Callable

    from opentelemetry.metrics import Meter

    from celery_dlx_retry.contrib.opentelemetry.attributes import Attributes

# The sender of such a message chose the name of the task.
_WITHOUT_TASK = frozenset(map(str, (Reason.UNKNOWN_TASK, Reason.INVALID, Reason.UNDECODABLE)))
_DELAYS = (1, 5, 15, 60, 300, 900, 3600, 21600, 86400)
# As the conventions say.
_DURATIONS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)


class Metrics:
    """A subscriber that counts events. No attribute has the text of an error or the id of a task."""

    def __init__(self, meter: Meter) -> None:
        self._name, self._queue = Bounded(MOST_NAMES), Bounded(MOST_QUEUES)
        self._exception = Bounded(MOST_EXCEPTIONS)
        self._take: dict[type, Callable[..., None]] = {
            events.RetryScheduled: self._on_retry,
            events.DeadLettered: self._on_dead,
            events.Recovered: self._on_recovered,
            events.Parked: self._on_parked,
            events.GivenBack: self._on_given_back,
            events.Replayed: self._on_replayed,
            events.Purged: self._on_purged,
            events.Edited: self._on_edited,
        }
        self.use(meter)

    def use(self, meter: Meter) -> None:
        """Count with this meter from now on."""
        counter, histogram = meter.create_counter, meter.create_histogram
        self._retries = counter("celery.dlx.retries", "{message}", "Retries that wait in a lane.")
        self._dead = counter("celery.dlx.dead_letters", "{message}", "Messages that became dead letters.")
        self._recovered = counter("celery.dlx.recovered", "{task}", "Tasks that succeeded after at least one retry.")
        self._parked = counter("celery.dlx.parked", "{message}", "Messages that an open breaker sent to wait.")
        self._given_back = counter(
            "celery.dlx.given_back",
            "{message}",
            "Deliveries that went back to their queue, because the broker took no message.",
        )
        self._replayed = counter("celery.dlx.replayed", "{message}", "Dead letters that this process replayed.")
        self._purged = counter("celery.dlx.purged", "{message}", "Dead letters that this process deleted.")
        self._edited = counter("celery.dlx.edited", "{message}", "Dead letters that this process edited.")
        self._delay = histogram(
            "celery.dlx.retry.delay", "s", "How long retries wait.", explicit_bucket_boundaries_advisory=_DELAYS
        )
        self._recovery = histogram(
            "celery.dlx.recovery.duration",
            "s",
            "From the first failure of a task to its success.",
            explicit_bucket_boundaries_advisory=_DELAYS,
        )
        self._duration = histogram(
            OPERATION_DURATION,
            "s",
            "Until the broker confirmed a retry or a dead letter.",
            explicit_bucket_boundaries_advisory=_DURATIONS,
        )

    def __call__(self, event: events.Event, /) -> None:
        """Count one event."""
        if (take := self._take.get(type(event))) is not None:
            take(event)

    def _facts(self, queue: str, task: str | None = None, **more: str) -> Attributes:
        facts: Attributes = {SYSTEM: "rabbitmq", DESTINATION: self._queue(queue)}
        return facts if task is None else {**facts, TASK: self._name(task), **more}

    def _confirmed(self, name: str, event: events.RetryScheduled | events.DeadLettered) -> None:
        self._duration.record(event.confirm_ms / 1000, operation(name, self._queue(event.queue)))

    def _on_retry(self, event: events.RetryScheduled) -> None:
        facts = self._facts(event.queue, event.task)
        self._delay.record(event.delay_ms / 1000, facts)
        self._retries.add(1, {**facts, ERROR_TYPE: self._exception(event.error_type), WAY: event.way})
        self._confirmed("retry", event)

    def _on_dead(self, event: events.DeadLettered) -> None:
        facts = self._facts(event.queue, UNKNOWN if event.reason in _WITHOUT_TASK else event.task)
        self._dead.add(1, {**facts, ERROR_TYPE: self._exception(event.error_type), REASON: str(event.reason)})
        self._confirmed("dead-letter", event)

    def _on_recovered(self, event: events.Recovered) -> None:
        facts = self._facts(event.queue, event.task)
        self._recovered.add(1, facts)
        if event.first_failed_at_ms:
            self._recovery.record(max(0.0, time.time() - event.first_failed_at_ms / 1000), facts)

    def _on_parked(self, event: events.Parked) -> None:
        self._parked.add(1, self._facts(event.queue, event.task))

    def _on_given_back(self, event: events.GivenBack) -> None:
        facts = self._facts(event.queue, event.task)
        self._given_back.add(1, {**facts, ERROR_TYPE: self._exception(event.cause)})

    def _on_replayed(self, event: events.Replayed) -> None:
        self._replayed.add(1, self._facts(event.queue, event.task))

    def _on_purged(self, event: events.Purged) -> None:
        self._purged.add(event.count, self._facts(event.dead_letter_queue))

    def _on_edited(self, event: events.Edited) -> None:
        self._edited.add(1, self._facts(event.dead_letter_queue))
