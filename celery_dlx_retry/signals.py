"""Celery signals that carry the events of ``celery_dlx_retry.events``: one signal for each event.

The sender is the name of the task, so that ``connect(sender="shop.charge")`` hears of one task. It is empty for
``purged``, and for a message that names no task. A process that does not import this module pays nothing for it::

    from celery_dlx_retry.signals import dead_lettered

    @dead_lettered.connect
    def page_somebody(sender, event, **kwargs):
        print(sender, event.reason)
"""

from __future__ import annotations

from celery.utils.dispatch import Signal

from celery_dlx_retry import events

_ARGUMENTS = {"event"}

retry_scheduled = Signal(name="retry_scheduled", providing_args=_ARGUMENTS)
dead_lettered = Signal(name="dead_lettered", providing_args=_ARGUMENTS)
recovered = Signal(name="recovered", providing_args=_ARGUMENTS)
parked = Signal(name="parked", providing_args=_ARGUMENTS)
given_back = Signal(name="given_back", providing_args=_ARGUMENTS)
countdown_scheduled = Signal(name="countdown_scheduled", providing_args=_ARGUMENTS)
breaker_changed = Signal(name="breaker_changed", providing_args=_ARGUMENTS)
budget_changed = Signal(name="budget_changed", providing_args=_ARGUMENTS)
replayed = Signal(name="replayed", providing_args=_ARGUMENTS)
purged = Signal(name="purged", providing_args=_ARGUMENTS)
edited = Signal(name="edited", providing_args=_ARGUMENTS)
imported = Signal(name="imported", providing_args=_ARGUMENTS)

#: The signal of each event. ``Returned`` has none: only who subscribes to it pays for it.
SIGNALS: dict[type, Signal] = {
    events.RetryScheduled: retry_scheduled,
    events.DeadLettered: dead_lettered,
    events.Recovered: recovered,
    events.Parked: parked,
    events.GivenBack: given_back,
    events.CountdownScheduled: countdown_scheduled,
    events.BreakerChanged: breaker_changed,
    events.BudgetChanged: budget_changed,
    events.Replayed: replayed,
    events.Purged: purged,
    events.Edited: edited,
    events.Imported: imported,
}


def send_signal(event: events.Event) -> None:
    """Send the signal of an event, if it has a receiver. Celery logs the error of a receiver, and goes on."""
    signal = SIGNALS.get(type(event))
    if signal is not None and signal.receivers:
        signal.send(sender=getattr(event, "task", ""), event=event)


events.subscribe(send_signal, needs_returns=False)
