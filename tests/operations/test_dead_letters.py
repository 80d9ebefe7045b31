"""Dead letters from Python: select, group, replay, purge, export, import and edit, without a command line."""

from __future__ import annotations

import io
import re
import threading
import time
from contextlib import closing
from fractions import Fraction
from pathlib import Path

import pytest
from celery import Celery
from kombu.connection import Connection
from support import eventually

from celery_dlx_retry.app.context import context_of
from celery_dlx_retry.broker.declare import declare
from celery_dlx_retry.broker.sync_publisher import Publisher
from celery_dlx_retry.deadletters.filter import LetterFilter
from celery_dlx_retry.errors import ArgumentsDoNotFit, InvalidExportLine, Missing
from celery_dlx_retry.events import Edited, Imported, Purged, Replayed
from celery_dlx_retry.operations.canary import CanaryTest
from celery_dlx_retry.operations.edit import find_letter, plan_edit, plan_restore, run_edit, set_arguments
from celery_dlx_retry.operations.monitor import (
    Audited,
    CanariesJudged,
    LetterKept,
    LetterPlanned,
    LetterReplayed,
    Monitor,
)
from celery_dlx_retry.operations.operation_errors import BrokerUnavailable, InvalidRequest, NeedsRabbitMQ
from celery_dlx_retry.operations.purge import Purge
from celery_dlx_retry.operations.replay import Replay
from celery_dlx_retry.operations.select_letters import LetterQuery, SelectedLetters, group_letters, list_letters
from celery_dlx_retry.operations.transfer import Import, export_letters
from celery_dlx_retry.topology.names import WorkQueue
from celery_dlx_retry.topology.objects import shared_objects, work_queue_objects
from celery_dlx_retry.wire.dead_record import DeadRecord, with_record
from celery_dlx_retry.wire.task_body import payload_of

ALL = LetterQuery(everything=True)
API_PAGE = Path(__file__).parents[2] / "docs" / "api.md"


class Shop:
    """An app with one work queue, and its dead letters."""

    def __init__(self, url: str, prefix: str) -> None:
        self.app = Celery("shop", broker=url, set_as_current=False)
        self.app.conf.update(task_default_queue=f"{prefix}.work", dlx_prefix=prefix)
        self.app.task(name="shop.charge", shared=False)(charge)
        self.queue = f"{prefix}.work"
        self._names = context_of(self.app).names
        self.dead_queue = self._names.dead_letters(self.queue)
        self._url = url
        self._publisher = Publisher(lambda: Connection(url), confirm_timeout_ms=10_000)
        with Connection(url) as connection:
            connection.default_channel.queue_declare(self.queue, durable=True, auto_delete=False)
            declare(
                connection,
                shared_objects(self._names) | work_queue_objects(self._names, WorkQueue(name=self.queue)),
            )

    def close(self) -> None:
        self._publisher.close()
        context_of(self.app).publisher.close()
        self.app.close()

    def add(self, *task_ids: str, order: int = 1, **facts: object) -> None:
        """Publish dead letters, and wait until they are there."""
        before = self.depth(self.dead_queue)
        for task_id in task_ids:
            record = {
                "reason": "failed",
                "task": "shop.charge",
                "task_id": task_id,
                "queue": self.queue,
                "dead_letter_key": self.queue,
                "worker": "w@h",
                "attempts": 1,
                "died_at_ms": time.time_ns() // 1_000_000,
                "error_type": "ValueError",
                "error": "no",
            }
            headers = {"id": task_id, "task": "shop.charge", "lang": "py"}
            embed = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}
            with self._publisher.producer() as producer:
                producer.publish(
                    [[order], {}, embed],
                    exchange=self._names.dead(),
                    routing_key=self.queue,
                    headers=with_record(headers, DeadRecord(**{**record, **facts})),
                )
        eventually(lambda: self.depth(self.dead_queue) == before + len(task_ids))

    def depth(self, queue: str) -> int:
        with Connection(self._url) as connection:
            return connection.default_channel.queue_declare(queue, passive=True).message_count

    def dead_ids(self) -> list[str]:
        with SelectedLetters(self.app, LetterQuery()) as letters:
            return [letter.record.task_id for letter in letters]


def charge(order, *, currency="EUR"):
    return order, currency


@pytest.fixture
def shop(broker, prefix):
    with closing(Shop(broker.url, prefix)) as it:
        yield it


def ids(*task_ids):
    return LetterQuery(filter=LetterFilter(ids=frozenset(task_ids)))


def watch(**options):
    """Return a monitor and the notices that it gets."""
    notices = []
    return Monitor(notice=notices.append, **options), notices


def break_pipe(*_):
    raise BrokenPipeError


# --- select, list, group ---


def test_letters_are_selected_listed_and_grouped_and_stay_where_they_are(shop):
    shop.add("a", "b", error_type="KeyError")
    shop.add("c")
    seen = []
    monitor = Monitor(progress=lambda done, total: seen.append((done, total)))

    listed = list_letters(shop.app, LetterQuery(), sort="task", reverse=True, limit=2, monitor=monitor)
    grouped = group_letters(shop.app, LetterQuery(queues=(shop.queue,)))
    one_kind = list_letters(shop.app, LetterQuery(filter=LetterFilter(exceptions=("KeyError",))))

    assert (len(listed.letters), listed.total) == (2, 3)
    assert seen == [(1, 3), (2, 3), (3, 3)]
    assert [(group.fingerprint.error, group.count) for group in grouped.groups] == [("KeyError", 2), ("ValueError", 1)]
    assert [letter.record.task_id for letter in one_kind.letters] == ["a", "b"]
    assert shop.dead_ids() == ["a", "b", "c"]


def test_a_group_that_no_letter_belongs_to_is_named(shop):
    shop.add("a")

    found = group_letters(shop.app, LetterQuery(filter=LetterFilter(groups=("0badcafe",))))

    assert (found.groups, found.absent_groups) == ((), ("0badcafe",))


def test_reading_ends_when_the_caller_cancels_and_the_letters_stay(shop):
    shop.add("a", "b", "c")
    cancel = threading.Event()
    monitor = Monitor(cancel=cancel)

    with SelectedLetters(shop.app, LetterQuery(), monitor=monitor) as letters:
        found = []
        for letter in letters:
            found.append(letter.record.task_id)
            cancel.set()

    assert found == ["a"]
    eventually(lambda: shop.depth(shop.dead_queue) == 3)


def test_a_queue_that_does_not_exist_is_missing(shop):
    with pytest.raises(Missing, match="elsewhere"):
        list_letters(shop.app, LetterQuery(queues=("elsewhere",)))


def test_errors_of_the_broker_are_ours_and_errors_of_the_caller_are_not_changed(shop):
    shop.add("a")
    nowhere = Celery("nowhere", broker="amqp://shop:geheim@127.0.0.1:1/shop", set_as_current=False)
    elsewhere = Celery("elsewhere", broker="redis://", set_as_current=False)

    with pytest.raises(BrokerUnavailable) as refused:
        list_letters(nowhere, LetterQuery())
    with pytest.raises(NeedsRabbitMQ):
        list_letters(elsewhere, LetterQuery())
    with pytest.raises(BrokenPipeError):
        list_letters(shop.app, LetterQuery(), monitor=Monitor(progress=break_pipe))

    assert "geheim" not in str(refused.value)
    eventually(lambda: shop.depth(shop.dead_queue) == 1)


@pytest.mark.parametrize("operation", [Replay, Purge])
@pytest.mark.parametrize(
    "query", [LetterQuery(), LetterQuery(everything=True, filter=LetterFilter(ids=frozenset("a")))]
)
def test_an_operation_that_changes_letters_needs_a_query_that_names_them(shop, operation, query):
    with pytest.raises(InvalidRequest):
        operation(shop.app, query)


# --- replay ---


def test_a_replay_moves_the_letters_and_tells_progress_notices_and_events(shop, events):
    shop.add("a", "b")
    shop.add("c", error_type="KeyError")
    progress = []
    monitor, notices = watch(progress=lambda done, total: progress.append((done, total)))

    with Replay(shop.app, ids("a", "b", "gone"), operator="anna@web", monitor=monitor) as replay:
        result = replay.run()

    assert (result.replayed, result.kept, result.missing_ids, result.is_complete) == (2, 0, ("gone",), True)
    assert progress == [(1, 3), (2, 3)]
    moved = [it.letter.record.task_id for it in notices if isinstance(it, LetterReplayed)]
    assert moved == ["a", "b"]
    (audited,) = (it.line for it in notices if isinstance(it, Audited))
    assert audited.startswith("audit dead replay by=anna@web replayed=2")
    assert events == [
        Replayed(task="shop.charge", task_id=it, queue=shop.queue, dead_letter_queue=shop.dead_queue) for it in "ab"
    ]
    assert shop.dead_ids() == ["c"]
    eventually(lambda: shop.depth(shop.queue) == 2)


def test_a_replay_that_is_cancelled_leaves_the_rest_where_it_is_and_the_next_one_continues(shop):
    shop.add("a", "b", "c", "d")
    cancel = threading.Event()

    def stop_after_two(done, _):
        if done == 2:
            cancel.set()

    with Replay(shop.app, ALL, monitor=Monitor(progress=stop_after_two, cancel=cancel)) as replay:
        cancelled = replay.run()
    left = shop.dead_ids()
    with Replay(shop.app, ALL) as replay:
        completed = replay.run()

    assert (cancelled.replayed, cancelled.is_complete, left) == (2, False, ["c", "d"])
    assert (completed.replayed, completed.is_complete) == (2, True)
    eventually(lambda: shop.depth(shop.queue) == 4)


def test_a_replay_that_waits_for_its_rate_is_cancelled_at_once(shop):
    shop.add("a", "b")
    cancel = threading.Event()
    monitor = Monitor(progress=lambda *_: threading.Timer(0.1, cancel.set).start(), cancel=cancel)
    started = time.monotonic()

    with Replay(shop.app, ALL, per_second=Fraction(1, 600), monitor=monitor) as replay:
        result = replay.run()

    assert time.monotonic() - started < 60
    assert (result.replayed, result.is_complete) == (1, False)
    assert shop.dead_ids() == ["b"]


def test_a_plan_says_what_a_replay_would_do_and_the_replay_moves_no_letter_that_died_later(shop):
    shop.add("a")
    shop.add("lost", queue="unknown", dead_letter_key="unknown")
    monitor, notices = watch()

    with Replay(shop.app, ALL, monitor=monitor) as replay:
        plan = replay.plan()
        shop.add("late")
        result = replay.run()

    assert (plan.total, plan.kept, plan.per_queue) == (1, 1, {shop.dead_queue: 1})
    planned = {it.letter.record.task_id: it.problem for it in notices if isinstance(it, LetterPlanned)}
    assert planned["a"] is None
    assert "unknown" in str(planned["lost"])
    assert (result.replayed, result.kept) == (1, 1)
    assert [it.letter.record.task_id for it in notices if isinstance(it, LetterKept)] == ["lost"]
    assert sorted(shop.dead_ids()) == ["late", "lost"]


def test_the_rest_stays_if_the_canaries_do_not_succeed_in_time(shop, tmp_path):
    shop.app.conf.result_backend = f"file://{tmp_path}"
    shop.add("a", "b", "c")
    monitor, notices = watch()

    with Replay(shop.app, ALL, canary=CanaryTest(count=1, wait_seconds=0.1), monitor=monitor) as replay:
        result = replay.run()

    assert result.stopped is not None
    assert (result.stopped.reason, result.stopped.outcomes) == ("unknown outcomes", {"not known": 1})
    assert (result.replayed, result.is_complete) == (1, False)
    assert [it.outcomes for it in notices if isinstance(it, CanariesJudged)] == [{"a": "not known"}]
    assert shop.dead_ids() == ["b", "c"]


def test_a_wait_for_canaries_can_be_cancelled(shop, tmp_path):
    shop.app.conf.result_backend = f"file://{tmp_path}"
    shop.add("a", "b")
    cancel = threading.Event()
    monitor = Monitor(notice=lambda it: cancel.set() if isinstance(it, LetterReplayed) else None, cancel=cancel)
    started = time.monotonic()

    with Replay(shop.app, ALL, canary=CanaryTest(count=1, wait_seconds=600), monitor=monitor) as replay:
        result = replay.run()

    assert time.monotonic() - started < 60
    assert result.stopped is not None
    assert (result.stopped.reason, result.replayed) == ("cancelled", 1)
    assert shop.dead_ids() == ["b"]


def test_canaries_need_a_result_backend_that_can_be_asked(shop):
    with pytest.raises(InvalidRequest, match="result_backend"):
        Replay(shop.app, ALL, canary=CanaryTest(count=1))


def test_the_example_on_the_page_replays_and_leaves_other_errors_alone(shop):
    (code,) = re.findall(r"```python\n(.*?def replay_timeouts.*?)```", API_PAGE.read_text(), re.DOTALL)
    page = {}
    exec(code, page)  # noqa: S102 - our own page
    shop.add("a", "b", error_type="TimeoutError")
    shop.add("c")
    seen = []

    replayed = page["replay_timeouts"](shop.app, "anna@web", lambda *it: seen.append(it), threading.Event())

    assert replayed == 2
    assert seen[-1] == (2, 3)
    assert shop.dead_ids() == ["c"]


# --- purge ---


def test_a_purge_deletes_what_its_plan_has_seen(shop, events):
    shop.add("a", "b")
    monitor, notices = watch()

    with Purge(shop.app, ALL, operator="anna@web", monitor=monitor) as purge:
        plan = purge.plan()
        shop.add("late")
        result = purge.run()

    assert (plan.total, plan.per_queue) == (2, {shop.dead_queue: 2})
    assert (result.purged, result.is_complete) == (2, True)
    (audited,) = (it.line for it in notices if isinstance(it, Audited))
    assert audited.startswith("audit dead purge by=anna@web purged=2")
    assert events == [Purged(dead_letter_queue=shop.dead_queue, count=2)]
    assert shop.dead_ids() == ["late"]


def test_a_purge_that_is_cancelled_leaves_the_rest_where_it_is(shop):
    shop.add("a", "b", "c")
    cancel = threading.Event()

    with Purge(shop.app, ALL, monitor=Monitor(progress=lambda *_: cancel.set(), cancel=cancel)) as purge:
        result = purge.run()

    assert (result.purged, result.is_complete) == (1, False)
    assert shop.dead_ids() == ["b", "c"]


# --- export and import ---


def test_letters_come_back_from_an_export_as_they_were_and_each_once(shop, events):
    shop.add("a", "b")
    file = io.StringIO()

    with SelectedLetters(shop.app, LetterQuery()) as letters:
        count = export_letters(letters, file)
        before = list(letters)
    with Purge(shop.app, ids("a")) as purge:
        purge.run()
    events.clear()
    lines = io.BytesIO(file.getvalue().encode())
    with Import(shop.app, lines, source="letters.jsonl") as importing:
        plan = importing.plan()
        first = importing.run()
    with Import(shop.app, lines) as importing:
        second = importing.run()

    assert (count, plan.total, plan.queues) == (2, 2, {shop.dead_queue})
    assert (first.imported, first.already_there, first.lines_done, first.is_complete) == (1, 1, 2, True)
    assert (second.imported, second.already_there) == (0, 2)
    assert events == [Imported(task="shop.charge", task_id="a", dead_letter_queue=shop.dead_queue)]
    with SelectedLetters(shop.app, LetterQuery()) as letters:
        after = {letter.record.task_id: letter for letter in letters}
    assert {letter.record.task_id: letter.record for letter in before} == {it: after[it].record for it in "ab"}
    assert all(after[letter.record.task_id].message.body == letter.message.body for letter in before)


def test_an_import_that_is_cancelled_says_where_to_continue(shop):
    shop.add("a", "b", "c")
    file = io.StringIO()
    with SelectedLetters(shop.app, LetterQuery()) as letters:
        export_letters(letters, file)
    with Purge(shop.app, ALL) as purge:
        purge.run()
    lines = io.BytesIO(file.getvalue().encode())
    cancel = threading.Event()

    with Import(shop.app, lines, monitor=Monitor(progress=lambda *_: cancel.set(), cancel=cancel)) as importing:
        cancelled = importing.run()
    with Import(shop.app, lines, skip=cancelled.lines_done) as importing:
        rest = importing.run()

    assert (cancelled.imported, cancelled.lines_done, cancelled.is_complete) == (1, 1, False)
    assert (rest.imported, rest.already_there, rest.is_complete) == (2, 0, True)
    assert sorted(shop.dead_ids()) == ["a", "b", "c"]


def test_a_file_with_one_bad_line_is_not_imported_at_all(shop):
    shop.add("a")
    file = io.StringIO()
    with SelectedLetters(shop.app, LetterQuery()) as letters:
        export_letters(letters, file)
    with Purge(shop.app, ALL) as purge:
        purge.run()

    bad = io.BytesIO(file.getvalue().encode() + b"no letter\n")
    with Import(shop.app, bad) as importing, pytest.raises(InvalidExportLine, match="Line 2"):
        importing.run()

    assert shop.depth(shop.dead_queue) == 0


# --- edit ---


def test_an_edit_changes_arguments_and_can_be_undone(shop, events):
    shop.add("a", order=1)
    monitor, notices = watch()

    letter = find_letter(shop.app, "a")
    plan = plan_edit(shop.app, letter, set_arguments(shop.app, letter, {"order": 2, "currency": "CHF"}))
    first, stale = (run_edit(shop.app, plan, operator="anna@web", monitor=monitor) for _ in range(2))
    changed = find_letter(shop.app, "a")
    run_edit(shop.app, plan_restore(changed))
    restored = find_letter(shop.app, "a")

    assert (first, stale) == (1, 0)
    payload = payload_of(changed.message)
    assert (payload.args, payload.kwargs) == ([2], {"currency": "CHF"})
    assert restored.message.body == letter.message.body
    assert notices[0].line.startswith("audit dead edit by=anna@web edited=1 task_id=a")
    assert events == [Edited(task="shop.charge", task_id="a", dead_letter_queue=shop.dead_queue)] * 2


def test_an_edit_that_the_task_would_not_take_is_refused(shop):
    shop.add("a")
    letter = find_letter(shop.app, "a")

    with pytest.raises(ArgumentsDoNotFit, match="unexpected keyword"):
        plan_edit(shop.app, letter, set_arguments(shop.app, letter, {"colour": "red"}))
    with pytest.raises(InvalidRequest, match="1 positional"):
        set_arguments(shop.app, letter, {"7": 1})
    unchanged = plan_edit(shop.app, letter, payload_of(letter.message))

    assert unchanged.changed is None
    assert run_edit(shop.app, unchanged) == 0
    assert find_letter(shop.app, "nobody") is None
