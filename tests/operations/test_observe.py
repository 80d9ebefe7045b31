"""The counts for metrics, on a real broker."""

from __future__ import annotations

import time
from contextlib import contextmanager

import pytest
from amqp.exceptions import ChannelError
from kombu.connection import Connection
from support import eventually, put

from celery_dlx_retry.errors import DLXError
from celery_dlx_retry.operations.observe import Observer, WorkQueueCount
from celery_dlx_retry.operations.session import open_session
from celery_dlx_retry.operations.topology import declare_topology
from celery_dlx_retry.topology.names import WorkQueue


@pytest.fixture
def observer(app, broker, management):
    if management is None:
        pytest.skip("no HTTP API")
    it = Observer(app, management_url=broker.management_url, check_seconds=0)
    yield it
    it.close()


@pytest.fixture
def letters(session, broker, prefix):
    """A declared topology with three messages in the dead-letter queue."""
    declare_topology(session)
    put(broker.url, range(3), routing_key=f"{prefix}.work.dead")
    return f"{prefix}.work.dead"


def test_waiting_dead_and_orphaned_messages_are_counted(observer, session, charge, broker, letters):
    prefix = session.names.prefix
    charge(600)
    charge(600)
    charge(60)
    put(broker.url, range(2), routing_key=session.names.orphans())

    found = eventually(lambda: (it := observer.read()).orphans == 2 and sum(w.messages for w in it.waiting) == 3 and it)

    waiting = {(it.queue, it.lane): it.messages for it in found.waiting}
    assert (waiting[f"{prefix}.work", "600s"], waiting[f"{prefix}.work", "60s"]) == (2, 1)
    (dead,) = eventually(lambda: (it := observer.read().dead_letters) and it[0].messages == 3 and it)
    assert (dead.queue, dead.dead_letter_queue, dead.oldest_ms) == (f"{prefix}.work", letters, None)
    assert found.work_queues == (WorkQueueCount(queue=f"{prefix}.work", messages=0, consumers=0),)
    assert (found.missing, found.no_management) == ((), "")


def test_reading_leaves_ready_counts_consumers_and_redelivered_flags_alone(observer, broker, letters):
    for _ in range(5):
        observer.read()

    with Connection(broker.url) as connection:
        channel = connection.channel()
        declared = channel.queue_declare(letters, passive=True)
        assert (declared.message_count, declared.consumer_count) == (3, 0)
        seen = [channel.basic_get(letters) for _ in range(3)]
    assert [it.headers["id"] for it in seen] == ["0", "1", "2"]
    assert not any(it.delivery_info["redelivered"] for it in seen)


def test_a_message_that_a_look_holds_is_still_counted(observer, broker, letters):
    eventually(lambda: [it.messages for it in observer.read().dead_letters] == [3])
    with Connection(broker.url) as connection:
        held = [connection.default_channel.basic_get(letters) for _ in range(3)]
        assert all(held)
        until = time.monotonic() + 11  # the API refreshes every five seconds

        eventually(lambda: time.monotonic() > until or observer.read().dead_letters[0].messages != 3)

        assert observer.read().dead_letters[0].messages == 3


def test_what_is_missing_is_counted_and_lanes_are_not(observer, session, management, letters, prefix):
    assert observer.read().missing == ()
    for kind, name in (
        ("queues", letters),
        ("queues", f"{prefix}.work"),
        ("exchanges", session.names.dead()),
        ("queues", session.names.lane(WorkQueue(name=f"{prefix}.work"), 60_000)),
    ):
        management.delete(kind, name)

    assert sorted(observer.read().missing) == sorted([letters, f"{prefix}.work", session.names.dead()])


def test_a_lane_that_keeps_its_message_is_overdue(app, session, broker, management, prefix):
    if management is None:
        pytest.skip("no HTTP API")
    # This lane has no time to live: its message never leaves it.
    lane = session.names.lane(WorkQueue(name=f"{prefix}.work"), 5_000)
    with Connection(broker.url) as connection:
        connection.default_channel.queue_declare(
            lane, durable=True, auto_delete=False, arguments={"x-queue-type": "quorum"}
        )
    put(broker.url, [1], routing_key=lane)
    times = iter(range(1_000_000, 10**9, 30_000))
    observer = Observer(app, management_url=broker.management_url, now_ms=lambda: next(times))
    try:
        late_ms = eventually(lambda: observer.read().overdue_ms.get("5s"))
    finally:
        observer.close()

    assert late_ms >= 15_000


def test_a_peek_knows_when_the_first_letter_died_and_leaves_the_letters(app, broker, session, prefix, management):
    if management is None:
        pytest.skip("no HTTP API")
    from celery_dlx_retry.wire.dead_record import DeadRecord, with_record  # noqa: PLC0415

    declare_topology(session)
    work = f"{prefix}.work"
    facts = {"task": "t", "task_id": "1", "queue": work, "dead_letter_key": work, "worker": "w", "attempts": 1}
    headers = with_record({}, DeadRecord(reason="exhausted", died_at_ms=1_794_831_454_000, **facts))
    put(broker.url, [1], routing_key=f"{prefix}.work.dead", headers=headers)
    observer = Observer(app, management_url=broker.management_url, check_seconds=0, peeks=True)
    try:
        (dead,) = eventually(lambda: (it := observer.read().dead_letters) and it[0].messages == 1 and it)
    finally:
        observer.close()

    assert dead.oldest_ms == 1_794_831_454_000


@contextmanager
def declares_of(observer):
    """The queues and exchanges that the next readings ask for over AMQP, with the answers that are errors."""
    asked, refused = [], []
    channel = type(observer._session.connection.default_channel)

    def recorded(method):
        def call(self, name, *args, **options):
            asked.append(name)
            try:
                return method(self, name, *args, **options)
            except ChannelError:
                refused.append(name)
                raise

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in ("queue_declare", "exchange_declare"):
            patch.setattr(channel, name, recorded(getattr(channel, name)))
        yield asked, refused


def test_a_repeated_diagnosis_makes_no_error_in_the_log_of_the_broker(observer, session, management, charge, letters):
    charge(37 * 60)  # no lane of the policy: it waits in a lane of the grid, or in the ladder
    observer.read()
    management.delete("queues", letters)

    with declares_of(observer) as (asked, refused):
        found = observer.read()

    assert (refused, found.missing) == ([], (letters,))
    assert session.names.dead() in asked


def test_without_the_http_api_waiting_messages_are_not_known(app, letters, monkeypatch):
    monkeypatch.setattr("celery_dlx_retry.broker.management._PORT", 1)
    observer = Observer(app)
    try:
        found = observer.read()
    finally:
        observer.close()

    assert (found.waiting, found.overdue_ms) == (None, {})
    assert [(it.dead_letter_queue, it.messages) for it in found.dead_letters] == [(letters, 3)]
    assert found.no_management.startswith("The management API at http://")


def test_a_lane_that_expires_is_not_kept_alive(make_app, broker, management):
    if management is None:
        pytest.skip("no HTTP API")
    app = make_app(broker.url, dlx_lane_expires=150)
    with open_session(app, management_url=broker.management_url) as session:
        declare_topology(session)
    observer = Observer(app, management_url=broker.management_url, check_seconds=0)
    try:
        observer.read()
        with declares_of(observer) as (asked, _):
            observer.read()
    finally:
        observer.close()

    lanes = [lane for name in asked if (lane := session.names.lane_of(name))]
    assert asked
    assert [lane.name for lane in lanes if not lane.stays] == []


def test_a_broker_that_is_down_is_one_error_and_the_next_reading_recovers(observer, broker, letters):
    assert letters
    if not broker.can_restart:
        pytest.skip("this broker cannot be stopped")
    observer.read()
    broker.stop()
    with pytest.raises(DLXError):
        observer.read()
    broker.start()

    def reads():
        try:
            return observer.read().dead_letters
        except DLXError:  # the HTTP API comes up later than AMQP
            return None

    assert eventually(reads, within=60)
