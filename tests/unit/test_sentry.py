"""The adapter for Sentry tags an error only if it belongs to a dead letter; its page says what the code does."""

from __future__ import annotations

import logging
import subprocess
import sys
import time
from datetime import datetime, timezone
from importlib import reload
from pathlib import Path
from types import SimpleNamespace

import pytest
from celery import Celery

from celery_dlx_retry import events
from celery_dlx_retry.contrib import sentry
from celery_dlx_retry.policy.reasons import Reason

PAGE = (Path(__file__).parents[2] / "docs" / "sentry.md").read_text()
ENQUEUED_AT = "sentry-task-enqueued-time"
LETTER = events.DeadLettered(
    task="shop.charge",
    task_id="id-1",
    queue="orders",
    reason=Reason.TIMEOUT,
    attempts=3,
    group="0a1b2c3d",
    error_type="TimeLimitExceeded",
    error="60",
    worker="w@h",
)


class TimeLimitExceeded(Exception):
    pass


def record(name="celery.worker.request", error=TimeLimitExceeded):
    exc_info = (error, error and error("60"), None)
    return logging.LogRecord(name, logging.ERROR, __file__, 1, "Task handler raised error", (), exc_info)


def processed(it, **event):
    return sentry.process(event, {"log_record": it})


def test_the_error_that_the_main_process_logs_for_a_dead_letter_is_tagged_once():
    sentry.on_event(LETTER)

    first, second = processed(record(), tags={"mine": "1"}), processed(record())

    tags = {"dlx.reason": "timeout", "dlx.group": "0a1b2c3d", "dlx.attempts": "3", "dlx.queue": "orders"}
    assert first == {"tags": {"mine": "1", "celery_task_id": "id-1", **tags}, "transaction": "shop.charge"}
    assert second == {}
    assert all(f"| `{name}` |" in PAGE for name in tags)


@pytest.mark.parametrize(
    "other", [record("shop.charge"), record(error=ValueError), record(error=None)], ids=["logger", "error", "no error"]
)
def test_another_error_is_not_tagged(other):
    sentry.on_event(LETTER)

    assert processed(other) == {}
    assert "tags" in processed(record())


def test_an_error_that_is_not_logged_is_not_tagged():
    sentry.on_event(LETTER)

    assert sentry.process({}, {"exc_info": (TimeLimitExceeded, TimeLimitExceeded("60"), None)}) == {}
    assert "tags" in processed(record())


@pytest.mark.parametrize("kind", ["exception", "threads"])
def test_only_our_frames_lose_their_variables(kind):
    def frame(module):
        return {"module": module, "vars": {"args": "s3cret"}}

    names = ("celery_dlx_retry.worker.run", "celery_dlx_retry_shop.tasks", "shop.tasks", None)
    values = [{"stacktrace": {"frames": [frame(name) for name in names]}}, {"stacktrace": None}]

    event = sentry.process({kind: {"values": values}}, {})

    frames = event[kind]["values"][0]["stacktrace"]["frames"]
    assert ["vars" in it for it in frames] == [False, True, True, True]


def test_a_tag_is_not_longer_than_sentry_takes():
    long = events.DeadLettered(**{name: getattr(LETTER, name) for name in LETTER.__slots__} | {"queue": "q" * 255})

    assert len(sentry.tags_of(long)["dlx.queue"]) == 200


def run_of_a_task(enqueued_at, *, eta=None, death=None, **headers):
    headers |= {"x-death": [{"time": death}]} if death is not None else {}
    info = SimpleNamespace(message=SimpleNamespace(headers=headers))
    request = SimpleNamespace(headers={ENQUEUED_AT: enqueued_at}, eta=eta, retries=0, delivery_info=info)
    return SimpleNamespace(app=Celery(set_as_current=False), request=request)


@pytest.mark.parametrize(
    ("facts", "begins"),
    [
        ({}, 5.0),
        ({"eta": "1970-01-01T00:00:09+00:00"}, 9.0),
        ({"eta": "1970-01-01T00:00:01+00:00"}, 5.0),
        ({"eta": "1970-01-01T00:00:01+00:00", "death": datetime(1970, 1, 1, 0, 0, 8, tzinfo=timezone.utc)}, 8.0),
        ({"eta": "soon"}, 5.0),
        ({"eta": ["1970"]}, 5.0),
        ({"death": "yesterday"}, 5.0),
    ],
    ids=str,
)
def test_the_latency_begins_when_the_message_was_due(monkeypatch, facts, begins):
    monkeypatch.setattr(sentry, "is_ours", lambda _: True)
    task = run_of_a_task(5.0, **facts)

    sentry.correct_latency(task)

    assert task.request.headers == {ENQUEUED_AT: begins}


def test_the_latency_is_never_negative(monkeypatch):
    monkeypatch.setattr(sentry, "is_ours", lambda _: True)
    task = run_of_a_task(5.0, eta="2999-01-01T00:00:00+00:00")

    sentry.correct_latency(task)

    assert task.request.headers[ENQUEUED_AT] <= time.time()


@pytest.mark.parametrize("forged", ["now", None, [], {}])
def test_a_forged_time_is_left_to_sentry(monkeypatch, forged):
    monkeypatch.setattr(sentry, "is_ours", lambda _: True)
    task = run_of_a_task(forged, eta="1970-01-01T00:00:09+00:00")

    sentry.correct_latency(task)

    assert task.request.headers == {ENQUEUED_AT: forged}


def test_without_sentry_the_adapter_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "sentry_sdk", None)

    with pytest.raises(ModuleNotFoundError, match=r"pip install 'celery-dlx-retry\[sentry\]'"):
        reload(sentry)


def test_a_worker_that_does_not_install_it_imports_nothing_of_sentry():
    code = (
        "import sys, celery_dlx_retry.worker.request, celery_dlx_retry.worker.bootstep, celery_dlx_retry.cli\n"
        "from celery_dlx_retry import DLXRetryTask\n"
        "assert not any(name.partition('.')[0] == 'sentry_sdk' for name in sys.modules)"
    )

    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_to_install_it_twice_is_to_install_it_once():
    code = (
        "from celery import signals\n"
        "from sentry_sdk.scope import global_event_processors\n"
        "from celery_dlx_retry import events\n"
        "from celery_dlx_retry.contrib.sentry import install\n"
        "install(), install()\n"
        "assert len(events._subscribers) == len(global_event_processors) == len(signals.task_prerun.receivers) == 1\n"
        "assert not events.needs_returns()"
    )

    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
