"""The status as a value."""

from __future__ import annotations

import pytest
from support import eventually

from celery_dlx_retry.operations.session import open_session
from celery_dlx_retry.operations.status import StatusReader, read_status
from celery_dlx_retry.operations.topology import declare_topology


def test_the_status_counts_what_works_and_waits(session, app, charge, prefix):
    declare_topology(session)
    app.tasks["shop.charge"].delay(1)
    charge(600)
    charge(600)

    found = eventually(lambda: (it := read_status(session)).ready("wait") == 2 and it.ready("work") == 1 and it)

    assert (found.ready("dead"), found.ready("orphans"), found.missing) == (0, 0, ())
    assert sum(lane.ready for lane in found.filled_lanes) == 2
    assert found.is_next_certain
    assert 590_000 < found.next_ms - found.read_at_ms <= 600_000
    assert {it.queue for it in found.queues if it.role == "work"} == {f"{prefix}.work"}
    assert len(found.busy) < len(found.queues)


def test_a_named_queue_that_does_not_exist_is_missing(app, prefix):
    with open_session(app, queues=[f"{prefix}.nowhere"]) as session:
        assert read_status(session).missing == (f"{prefix}.nowhere",)


def test_a_reader_reads_again_over_one_session(session, charge):
    reader = StatusReader(session)
    assert reader.read().ready("wait") == 0
    charge()

    assert session.management is None or eventually(lambda: reader.read().ready("wait")) == 1


def test_an_operation_prints_nothing(session, capfd):
    declare_topology(session)
    read_status(session)

    assert capfd.readouterr() == ("", "")


@pytest.mark.usefixtures("session")
def test_without_the_http_api_the_status_says_why_it_knows_less(app, monkeypatch):
    monkeypatch.setattr("celery_dlx_retry.broker.management._PORT", 1)
    with open_session(app) as session:
        found = read_status(session)

    assert found.no_management.startswith("The management API at http://")
