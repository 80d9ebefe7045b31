"""Events reach every subscriber, a subscriber that fails harms nothing, and each event has one log line."""

import logging
import pickle
from asyncio import CancelledError
from dataclasses import FrozenInstanceError, fields

import pytest

from celery_dlx_retry import events
from celery_dlx_retry.app.event_log import extra_of, log_event
from celery_dlx_retry.errors import Nacked
from celery_dlx_retry.events import emit, subscribe, unsubscribe

RUN = {"task": "shop.charge", "task_id": "7", "queue": "orders"}
WORKER = {"worker": "celery@here"}
RETRY = events.RetryScheduled(
    **RUN, **WORKER, retry=2, delay_ms=5000, error_type="TimeoutError", error="TimeoutError: card 4711"
)
DEAD = events.DeadLettered(
    group="3d666e04", **RUN, **WORKER, reason="exhausted", attempts=3, error_type="TimeoutError", error="card 4711"
)
GIVEN_BACK = events.GivenBack(**RUN, **WORKER, problem=Nacked(exchange="x", routing_key="orders"))
LINES = [
    (RETRY, "INFO", "retry scheduled task=shop.charge id=7 retry=2 delay_ms=5000 queue=orders"),
    (
        events.Returned(**RUN, **WORKER, retry=2, delay_ms=5000, late_ms=30),
        "DEBUG",
        "returned task=shop.charge id=7 retry=2 late_ms=30 queue=orders",
    ),
    (DEAD, "WARNING", "dead letter task=shop.charge id=7 reason=exhausted attempts=3 queue=orders"),
    (
        events.Recovered(**RUN, **WORKER, attempts=3, first_failed_at_ms=5),
        "DEBUG",
        "recovered task=shop.charge id=7 attempts=3 queue=orders",
    ),
    (
        events.Parked(**RUN, **WORKER, delay_ms=400),
        "INFO",
        "parked task=shop.charge id=7 delay_ms=400 queue=orders",
    ),
    (GIVEN_BACK, "ERROR", f"not handed over task=shop.charge id=7: {GIVEN_BACK.problem}"),
    (
        events.CountdownScheduled(**RUN, delay_ms=37),
        "DEBUG",
        "countdown scheduled task=shop.charge id=7 delay_ms=37 queue=orders",
    ),
    (
        events.CountdownScheduled(**RUN, delay_ms=37, is_sent_on=True),
        "INFO",
        "sent on task=shop.charge id=7 delay_ms=37 queue=orders",
    ),
    (
        events.BreakerChanged(task="shop.charge", state="open", interval_ms=400, per_interval=1),
        "WARNING",
        "breaker open task=shop.charge probe_every_ms=400",
    ),
    (
        events.BreakerChanged(task="shop.charge", state="half open", interval_ms=400, per_interval=2),
        "INFO",
        "breaker half open task=shop.charge per_interval=2",
    ),
    (
        events.BreakerChanged(task="shop.charge", state="closed", interval_ms=400, per_interval=None),
        "INFO",
        "breaker closed task=shop.charge",
    ),
    (
        events.BudgetChanged(task="shop.charge", remaining=0.5, pid=7),
        "DEBUG",
        "budget changed task=shop.charge remaining=0.5",
    ),
    (
        events.Replayed(**RUN, dead_letter_queue="orders.dead"),
        "DEBUG",
        "replayed task=shop.charge id=7 queue=orders dead_letter_queue=orders.dead",
    ),
    (
        events.Purged(dead_letter_queue="orders.dead", count=3),
        "DEBUG",
        "purged dead_letter_queue=orders.dead count=3",
    ),
    (
        events.Edited(task="shop.charge", task_id="7", dead_letter_queue="orders.dead"),
        "DEBUG",
        "edited task=shop.charge id=7 dead_letter_queue=orders.dead",
    ),
    (
        events.Imported(task="shop.charge", task_id="7", dead_letter_queue="orders.dead"),
        "DEBUG",
        "imported task=shop.charge id=7 dead_letter_queue=orders.dead",
    ),
]


@pytest.fixture
def seen():
    seen = []
    subscribe(seen.append)
    yield seen
    unsubscribe(seen.append)


@pytest.fixture
def records():
    records = []
    handler = logging.Handler(logging.DEBUG)
    handler.emit = records.append
    loggers = [logging.getLogger(name) for name in ("celery_dlx_retry.events",)]
    before = [it.level for it in loggers]
    for logger in loggers:
        logger.addHandler(handler)
        logger.setLevel(logging.DEBUG)
    yield records
    for logger, level in zip(loggers, before, strict=True):
        logger.removeHandler(handler)
        logger.setLevel(level)


def test_a_subscriber_gets_every_event_until_it_unsubscribes(seen):
    emit(RETRY)
    emit(DEAD)
    unsubscribe(seen.append)
    emit(RETRY)

    assert seen == [RETRY, DEAD]


def test_a_subscriber_that_subscribes_twice_gets_an_event_once(seen):
    subscribe(seen.append)

    emit(RETRY)

    assert seen == [RETRY]


class Panic(BaseException):
    """As libraries in Rust raise it."""


@pytest.mark.parametrize("kind", [OSError, CancelledError, Panic])
def test_a_subscriber_that_raises_is_logged_once_and_the_others_get_the_event(seen, records, kind):
    def broken(_event):
        raise kind("metrics server gone")

    unsubscribe(seen.append)
    subscribe(broken)
    subscribe(seen.append)
    try:
        emit(RETRY)
        emit(DEAD)
    finally:
        unsubscribe(broken)

    assert seen == [RETRY, DEAD]
    (failed,) = [it for it in records if "subscriber" in it.getMessage()]
    assert "broken" in failed.getMessage()
    assert failed.exc_info[0] is kind
    assert (failed.dlx_event, failed.dlx_failed_at) == ("SubscriberFailed", "RetryScheduled")


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
def test_what_a_signal_handler_raises_in_a_subscriber_goes_on(kind):
    def interrupted(_event):
        raise kind

    subscribe(interrupted)
    try:
        with pytest.raises(kind):
            emit(RETRY)
    finally:
        unsubscribe(interrupted)


def test_returned_is_needed_only_if_a_subscriber_besides_the_log_is_there(monkeypatch):
    monkeypatch.setattr(events, "_subscribers", (log_event,))
    monkeypatch.setattr(events, "_without_returns", (log_event,))
    assert not events.needs_returns()

    subscribe(print)

    assert events.needs_returns()


@pytest.mark.parametrize("event", [event for event, *_ in LINES])
def test_events_are_values_that_travel(event):
    first = fields(event)[0].name
    with pytest.raises(FrozenInstanceError):
        setattr(event, first, "other")
    if event is not GIVEN_BACK:  # errors compare by identity
        assert pickle.loads(pickle.dumps(event)) == event  # noqa: S301


@pytest.mark.parametrize(("event", "level", "line"), LINES)
def test_an_event_is_one_line_in_the_log(event, level, line, records):
    log_event(event)

    (record,) = records
    assert (record.levelname, record.getMessage()) == (level, line)
    assert record.dlx_event == type(event).__name__


def test_the_facts_are_fields_of_the_record_but_never_the_text_of_an_error(records):
    log_event(RETRY)
    log_event(DEAD)

    first, second = records
    assert (first.dlx_task, first.dlx_task_id, first.dlx_queue, first.dlx_retry, first.dlx_delay_ms) == (
        *("shop.charge", "7", "orders"),
        *(2, 5000),
    )
    assert first.dlx_error_type == second.dlx_error_type == "TimeoutError"
    assert second.dlx_reason == "exhausted"
    assert "4711" not in repr(vars(first)) + repr(vars(second))


def test_fields_of_a_record_cannot_steer_a_terminal():
    hostile = events.Parked(task="a\nb\x1b[2J", task_id="7", queue="q", delay_ms=1, worker="w")

    assert extra_of(hostile)["dlx_task"] == "a\\nb\\x1b[2J"


def test_a_problem_that_nobody_foresaw_is_logged_with_its_traceback(records):
    log_event(events.GivenBack(**RUN, **WORKER, problem=ZeroDivisionError("a bug")))
    log_event(GIVEN_BACK)

    bug, foreseen = records
    assert bug.exc_info[0] is ZeroDivisionError
    assert not foreseen.exc_info
    assert foreseen.dlx_cause == "Nacked"
