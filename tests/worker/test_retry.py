"""A retry waits in a lane and comes back to its queue."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partialmethod
from itertools import pairwise
from traceback import walk_tb

import pytest
from celery import Celery, signals
from celery.app.task import Context
from celery.app.trace import TraceInfo
from celery.exceptions import Retry
from celery.states import RETRY
from celery.worker.request import Request
from support import eventually

from celery_dlx_retry.topology.names import WorkQueue
from celery_dlx_retry.worker.request import DLXRequest
from celery_dlx_retry.worker.run_state import DeliveryInfo
from celery_dlx_retry.worker.trace import QuickTraceInfo
from tests.worker.stage import listening

POOLS = ["prefork", "solo", "threads"]


@pytest.mark.parametrize("pool", POOLS)
def test_a_task_that_fails_twice_succeeds_at_its_third_attempt(project, pool):
    with project.worker(pool=pool):
        result = project.send("heal", 2)

        assert result.get(timeout=20) == "healed"

    runs = project.records(id=result.id)
    assert [run["retries"] for run in runs] == [0, 1, 2]
    assert {run["queue"] for run in runs} == {project.queue}


def test_no_retry_is_early(project):
    with project.worker():
        results = [project.send("heal", 3, [0.1, 0.3, 1.0]) for _ in range(20)]
        for result in results:
            result.get(timeout=30)

    for result in results:
        at = [run["at"] for run in project.records(id=result.id)]
        gaps = [after - before for before, after in pairwise(at)]
        assert gaps[0] >= 0.1
        assert gaps[1] >= 0.3
        assert gaps[2] >= 1.0


@pytest.mark.parametrize("pool", POOLS)
def test_the_traceback_of_a_retry_is_of_the_task_and_not_of_celery_and_us(project, pool):
    with project.worker(pool=pool):
        result = project.send("heal", 1, 5.0)
        eventually(lambda: result.state == "RETRY")

    files = re.findall(r'File "[^"]*?([^/"]+)", line \d+, in (\w+)', result.traceback)
    assert ("project.py", "heal") in files
    assert set(files) <= {("project.py", "heal"), ("trace.py", "handle_retry"), ("trace.py", "_raised")}


@dataclass(frozen=True)
class Frozen(Exception):
    """Lets nobody set its traceback as an attribute."""

    code: int


CELERY = """
def lead(to):
    to()

def fail():
    raise error
"""


@pytest.mark.parametrize("error", [OSError("down"), Frozen(7)], ids=repr)
def test_what_led_to_a_task_is_not_told_with_its_retry_and_the_error_keeps_it(error):
    told = []
    app = Celery("told", set_as_current=False)
    celery = {"__name__": "celery.app", "error": error}
    exec(CELERY, celery)  # noqa: S102 - a module by that name

    @app.task(shared=False, on_retry=lambda *arguments: told.append(arguments[-1].traceback))
    def task():
        celery["fail"]()

    try:
        try:
            celery["lead"](task.run)
        except (OSError, Frozen) as cause:
            whole = cause.__traceback__.tb_next
            BaseException.with_traceback(cause, whole)
            raise Retry(exc=cause, when=1) from cause
    except Retry as retry:
        QuickTraceInfo(RETRY, retry).handle_retry(task, Context(id="1", hostname="host"), store_errors=False)

    assert [frame.f_code.co_name for frame, _ in walk_tb(error.__traceback__)] == ["lead", "task", "fail"]
    assert re.findall(r", in (lead|task|fail)$", told[0], re.MULTILINE) == ["task", "fail"]


def told_of_a_retry(task, request):
    """What Celery's main process gets to know of a retry, for an error that goes on as it was."""
    error = OSError("down")
    try:
        try:
            raise error
        except OSError as cause:
            raise Retry(exc=cause, when=1) from cause
    except Retry as retry:
        info = QuickTraceInfo(RETRY, retry).handle_retry(task, request, store_errors=task.store_errors_even_if_ignored)
        kept, frames = retry.__cause__, list(walk_tb(retry.__traceback__))
    assert kept is error
    # Celery clears it after this, and so frees what the body had in its hands.
    assert "told_of_a_retry" in [frame.f_code.co_name for frame, _ in frames]
    assert error.__traceback__ is not None
    return info.traceback


@pytest.mark.parametrize("reader", [None, "backend", "hook", "signal", "monitor", "patch"])
def test_the_traceback_of_a_retry_is_written_only_if_somebody_reads_it(reader, monkeypatch):
    app = Celery("read", backend="cache+memory://", set_as_current=False)
    heard = []

    @app.task(shared=False, store_errors_even_if_ignored=reader == "backend")
    def task():
        """Is never run."""

    def hear(*arguments, **facts):
        heard.append(facts["einfo"] if facts else arguments[-1])

    info = DeliveryInfo(
        {},
        queue=WorkQueue(name="q"),
        message=None,
        worker="w",
        is_bound=True,
        forwards=True,
        is_watched=reader == "monitor",
    )
    if reader == "hook":
        task.on_retry = hear
    if reader == "patch":
        monkeypatch.setattr(TraceInfo, "handle_retry", partialmethod(TraceInfo.handle_retry))
    if reader == "signal":
        signals.task_retry.connect(hear, weak=False)
    try:
        told = told_of_a_retry(task, Context(id="1", hostname="host", delivery_info=info))
    finally:
        signals.task_retry.disconnect(hear)

    assert told.endswith("celery.exceptions.Retry: Retry in 1s: OSError('down')\n")
    assert ("in told_of_a_retry" in told) == ("OSError: down" in told) == (reader is not None)
    assert [info.traceback for info in heard] == [told] * (reader in {"hook", "signal"})
    if reader == "backend":
        assert app.backend.get_traceback("1") == told


@pytest.mark.parametrize("of", ["on_failure", "on_retry", "send_event"])
@pytest.mark.parametrize("place", ["a class of its own", "Celery's", "ours"])
def test_who_has_a_hand_in_requests_is_told_of_the_traceback_of_a_retry(monkeypatch, place, of):
    class Mine(DLXRequest):
        pass

    def is_watched():
        request = object.__new__(Mine)
        request._eventer = None
        return request._is_watched()

    def mine(*_, **__):
        """Do something with it."""

    assert not is_watched()
    monkeypatch.setattr(
        {"a class of its own": Mine, "Celery's": Request, "ours": DLXRequest}[place], of, mine, raising=False
    )
    assert is_watched()


@pytest.mark.parametrize("pool", POOLS)
def test_a_monitor_is_told_of_the_traceback_of_a_retry(project, pool):
    project.conf |= {"event_exchange": f"{project.prefix}.events", "task_ignore_result": True}
    events = []
    with project.worker("-E", pool=pool), listening(project.app, events):
        result = project.send("heal", 1)
        retried = eventually(lambda: [it for it in events if it["type"] == "task-retried"])

    assert [it["uuid"] for it in retried] == [result.id]
    assert re.search(r'project.py", line \d+, in heal', retried[0]["traceback"])


def test_what_is_exhausted_is_a_dead_letter_with_its_history(project):
    with project.worker():
        result = project.send("exhaust")
        with pytest.raises(ValueError, match="always"):
            result.get(timeout=20)

    (letter,) = eventually(project.dead)
    assert letter.record.reason == "exhausted"
    assert letter.record.task_id == result.id
    assert letter.record.attempts == 3
    assert [failure.delay_ms for failure in letter.history] == [100, 100, None]
    assert [failure.error for failure in letter.history] == ["ValueError: always"] * 3
