"""Dead letters of work queues that the app does not know: shown, and changed by name only."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from kombu.connection import Connection

from celery_dlx_retry.broker import management as management_module
from celery_dlx_retry.broker.declare import declare
from celery_dlx_retry.cli import dlx
from celery_dlx_retry.topology.names import WorkQueue
from celery_dlx_retry.topology.objects import work_queue_objects


@pytest.fixture
def unknown_queue(desk):
    """The dead letter of a work queue that the app does not know: only a worker's ``-Q`` names it."""
    queue = WorkQueue(name=f"{desk.project.prefix}.only-by-q")
    with Connection(desk.project.url) as connection:
        connection.default_channel.queue_declare(queue.name, durable=True, auto_delete=False)
        declare(connection, work_queue_objects(desk.project.names, queue))
    desk.bury("hidden", queue=queue.name, dead_letter_key=queue.name)
    yield queue.name
    desk.take(desk.project.names.dead_letters(queue.name))


@pytest.mark.usefixtures("http_api")
def test_letters_of_a_queue_that_only_a_worker_names_are_found_over_the_http_api(desk, unknown_queue):
    desk.bury("known")
    desk.lying(1, "classic")

    listed = desk.json("list")
    planned = desk.json("replay", "hidden", "--dry-run")

    assert {row["task_id"]: row["queue"] for row in listed} == {"known": desk.work["classic"], "hidden": unknown_queue}
    assert [row["task_id"] for row in planned[:-1]] == ["hidden"]
    assert desk.dlx("show", "hidden").stderr == ""


@pytest.mark.usefixtures("http_api")
def test_what_the_app_does_not_know_is_deleted_by_name_only(desk, unknown_queue):
    desk.bury("known")
    desk.lying(1, "classic")

    all_known = desk.dlx("purge", "--all", "--yes")
    named = desk.dlx("purge", "-q", unknown_queue, "--yes")

    assert all_known.stdout == named.stdout == "1 purged\n"
    assert (
        f"queues that this app does not know are left alone. To include them, add -q {unknown_queue}.\n"
        in all_known.stderr
    )
    assert "not know" not in named.stderr


@pytest.mark.usefixtures("http_api")
@pytest.mark.parametrize("choice", ["--all", "--exception=*"])
def test_what_the_app_does_not_know_is_replayed_by_name_or_id_only(desk, unknown_queue, choice):
    desk.bury("known")
    desk.lying(1, "classic")

    everything = desk.dlx("replay", choice, "--yes")
    named = desk.dlx("replay", "-q", unknown_queue, "--yes")

    assert everything.stdout == f"replayed known to {desk.work['classic']}\n1 replayed\n"
    assert (
        f"queues that this app does not know are left alone. To include them, add -q {unknown_queue}.\n"
        in everything.stderr
    )
    assert named.stdout == f"replayed hidden to {unknown_queue}\n1 replayed\n"


@pytest.mark.usefixtures("http_api")
def test_the_doctor_tells_of_queues_under_the_prefix_that_the_app_does_not_know(desk, unknown_queue):
    done = CliRunner().invoke(dlx, ["doctor", "--json"], obj=SimpleNamespace(app=desk.app), env=desk._api)

    (found,) = (it for it in map(json.loads, done.stdout.splitlines()) if it["code"] == "shared-prefix")
    assert (found["severity"], unknown_queue in found["fact"]) == ("info", True)
    assert desk.work["classic"] not in found["fact"]


def test_without_the_http_api_somebody_says_how_to_find_them(desk, unknown_queue, monkeypatch):
    monkeypatch.setattr(management_module, "_PORT", 1)

    listed = desk.dlx("list", DLX_MANAGEMENT_URL="")
    named = desk.dlx("list", "-q", unknown_queue, DLX_MANAGEMENT_URL="")

    assert listed.stdout.splitlines()[1:] == ["0 dead letters"]
    assert "those of a queue that only `celery worker -Q` names need its name: -q NAME." in listed.stderr
    assert named.stdout.endswith("\n1 dead letter\n")
    assert named.stderr == ""
