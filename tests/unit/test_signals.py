"""Each event has a Celery signal, whose sender is the name of the task."""

import re
from pathlib import Path
from typing import get_args

import pytest

from celery_dlx_retry import events, signals
from celery_dlx_retry.events import Event, emit
from tests.unit.test_events import DEAD, RETRY

PAGE = (Path(__file__).parents[2] / "docs" / "events.md").read_text()


@pytest.fixture
def seen():
    seen = []

    def receive(sender, event, **_):
        seen.append((sender, event))

    for signal in signals.SIGNALS.values():
        signal.connect(receive)
    yield seen
    for signal in signals.SIGNALS.values():
        signal.disconnect(receive)


def test_every_event_but_returned_has_a_signal_that_is_on_the_page():
    rows = re.findall(r"^\| `([a-z_]+)` \| `(\w+)` \|$", PAGE, re.MULTILINE)

    assert {event: name for name, event in rows} == {it.__name__: signals.SIGNALS[it].name for it in signals.SIGNALS}
    assert set(signals.SIGNALS) == set(get_args(Event)) - {events.Returned}
    assert all(getattr(signals, it.name) is it for it in signals.SIGNALS.values())


def test_a_receiver_gets_the_event_and_the_name_of_the_task(seen):
    purged = events.Purged(dead_letter_queue="orders.dead", count=3)

    emit(RETRY)
    emit(purged)

    assert seen == [("shop.charge", RETRY), ("", purged)]


def test_a_receiver_of_one_task_hears_of_no_other_task():
    heard = []

    def receive(event, **_):
        heard.append(event)

    signals.dead_lettered.connect(receive, sender="shop.mail")
    try:
        emit(DEAD)
    finally:
        signals.dead_lettered.disconnect(receive, sender="shop.mail")

    assert heard == []


def test_a_receiver_that_raises_keeps_no_other_from_the_event(seen, caplog):
    def broken(**_):
        raise RuntimeError("the pager is down")

    signals.dead_lettered.connect(broken)
    try:
        emit(DEAD)
    finally:
        signals.dead_lettered.disconnect(broken)

    assert seen == [("shop.charge", DEAD)]
    assert "the pager is down" in caplog.text


def test_signals_alone_do_not_ask_for_returned(monkeypatch):
    monkeypatch.setattr(events, "_subscribers", (signals.send_signal,))

    assert not events.needs_returns()
