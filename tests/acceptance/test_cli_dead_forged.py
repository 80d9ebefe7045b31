"""Headers that a sender forged do not decide where a dead letter goes, or what ``edit --undo`` brings back."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import replace
from datetime import datetime

import pytest
from amqp import Message as RawMessage
from celery import Celery
from kombu.common import Broadcast
from kombu.connection import Connection
from support import eventually

from celery_dlx_retry.app.context import context_of
from celery_dlx_retry.broker.declare import declare
from celery_dlx_retry.broker.work_queues import dlx_queue
from celery_dlx_retry.errors import NoDestination
from celery_dlx_retry.operations.app_queues import Destinations
from celery_dlx_retry.topology.names import WorkQueue
from celery_dlx_retry.topology.objects import work_queue_objects
from celery_dlx_retry.wire.dead_record import with_record
from celery_dlx_retry.wire.headers import ORIGINAL
from tests.unit.letters import a_letter, a_message

BODY = b'[["real"], {}, {"callbacks": null, "errbacks": null, "chain": null, "chord": null}]'
FORGED_BODY = BODY.replace(b"real", b"forged")


@pytest.fixture(scope="module")
def victim(shared_desk):
    """The queue of another app."""
    name = f"{shared_desk.project.prefix}.victim"
    with Connection(shared_desk.project.url) as connection:
        connection.default_channel.queue_declare(name, durable=True, auto_delete=False)
    return name


@pytest.fixture(scope="module", params=["classic", "quorum"])
def rejecting(request, shared_desk):
    """A work queue whose rejected messages the broker makes dead letters."""
    prefix = shared_desk.project.prefix
    queue = dlx_queue(f"{prefix}.rejecting.{request.param}", queue_type=request.param, prefix=prefix)
    with Connection(shared_desk.project.url) as connection:
        queue(connection.default_channel).declare()
        declare(connection, work_queue_objects(shared_desk.project.names, WorkQueue(name=queue.name)))
    return queue.name


def reject(desk, queue, headers):
    """Send a message and let the broker dead-letter it."""
    with Connection(desk.project.url) as connection:
        channel = connection.default_channel
        message = RawMessage(BODY, application_headers=headers, content_type="application/json", delivery_mode=2)
        channel.basic_publish(message, "", queue)
        found = eventually(lambda: channel.basic_get(queue))
        channel.basic_reject(found.delivery_tag, requeue=False)
    eventually(lambda: desk.project.depth(desk.project.names.dead_letters(queue)) == 1)


def forged(victim, task_id="x"):
    """The headers of a message whose sender wants it to be in the queue of another app."""
    record = a_letter(queue=victim, dead_letter_key=victim, task_id=task_id, error="forged").record
    original = {"body": FORGED_BODY, "content_encoding": "utf-8"}
    return with_record({"id": task_id, "task": "project.succeed", "retries": 0, ORIGINAL: original}, record)


def deaths(victim, queue):
    """An x-death of the sender's: RabbitMQ 3 puts its own entry before it, or counts one up that is as its own."""
    return [
        {
            "queue": name,
            "reason": "rejected",
            "count": 3,
            "exchange": "",
            "routing-keys": [victim],
            "time": datetime(2020, 1, 1),  # noqa: DTZ001 - as py-amqp has it
        }
        for name in (victim, queue, f"dlx.v1.wait.classic.{victim}")
    ]


@pytest.mark.parametrize("with_death", [False, True])
def test_a_forged_record_does_not_choose_the_queue_of_a_replay(desk, victim, rejecting, with_death):
    more = {"x-death": deaths(victim, rejecting)} if with_death else {}
    reject(desk, rejecting, {**forged(victim), **more})

    (listed,) = desk.json("list", "-q", rejecting)
    asked = desk.dlx("replay", "-q", rejecting, code=1, answer="n\n")
    replayed = desk.dlx("replay", "-q", rejecting, "--yes")

    assert (listed["queue"], listed["family"], listed["reason"], listed["error"]) == (
        rejecting,
        rejecting,
        "rejected",
        "",
    )
    assert f"to {rejecting}, which this app does not know?" in asked.stderr
    assert replayed.stdout == f"replayed x to {rejecting}\n1 replayed\n"
    assert desk.project.depth(victim) == 0
    (message,) = desk.take(rejecting)
    assert not {key for key in message.headers if key.startswith("dlx-dead-") or key == ORIGINAL}


def test_undo_does_not_bring_back_what_a_sender_forged(desk, victim, rejecting):
    reject(desk, rejecting, forged(victim))
    where = ("-q", rejecting)

    (shown,) = desk.json("show", "x", *where)
    never = desk.dlx("edit", "x", *where, "--undo", "--yes", code=1)
    desk.dlx("edit", "x", *where, "--set", '0="mended"', "--no-check", "--yes")
    (edited,) = desk.json("show", "x", *where, "--args")
    desk.dlx("edit", "x", *where, "--undo", "--yes")

    (letter,) = desk.take(desk.project.names.dead_letters(rejecting))
    assert (shown["edited"], edited["edited"], edited["arguments"]["args"]) == (False, True, ["mended"])
    assert "it was never edited" in never.stderr
    assert json.loads(letter.body)[0] == ["real"]
    assert ORIGINAL not in letter.headers


def test_what_a_worker_buries_carries_no_original_of_its_sender(desk, victim):
    queue = WorkQueue(name=desk.work["classic"])
    message = a_message(BODY, headers=forged(victim))

    context_of(desk.app).publish_dead(message, queue, a_letter(queue=queue.name, dead_letter_key=queue.name).record)

    desk.lying(1)
    (letter,) = desk.letters("classic")
    assert ORIGINAL not in letter.message.headers
    assert letter.record.queue == queue.name


def test_a_letter_that_names_a_queue_of_others_stays_until_the_operator_names_it_too(desk, victim):
    desk.bury("liar", queue=victim)
    desk.bury("honest")
    desk.lying(2)

    both = desk.dlx("replay", "--all", code=1, answer="n\n")
    planned = desk.json("replay", "--all", "--dry-run", code=1)
    replayed = desk.json("replay", "--all", "--yes", code=1)
    asked = desk.dlx("replay", "liar", "--to-queue", victim, code=1, answer="n\n")
    desk.lying(1)
    desk.dlx("replay", "liar", "--to-queue", victim, "--yes")

    assert "(and keep 1 whose work queue is not known)?" in both.stderr
    assert {row["task_id"]: row["event"] for row in planned[:-1]} == {"liar": "would keep", "honest": "would replay"}
    assert (planned[-1]["would_replay"], planned[-1]["would_keep"]) == (1, 1)
    (kept,) = (row for row in replayed if row["event"] == "kept")
    assert kept["problem"] == (
        f"The dead letter stays: it names the work queue '{victim}', which this app does not know. "
        "If you know its work queue, replay it with --to-queue."
    )
    assert f"to {victim}, which this app does not know?" in asked.stderr
    assert [message.headers["id"] for message in desk.take(victim)] == ["liar"]


@pytest.mark.parametrize("queue", ["", "\ud800", "x" * 255, "\x1b]0;gone\x07", "\u202e"])
def test_a_letter_that_names_no_queue_at_all_is_kept_and_the_others_have_their_turn(desk, queue):
    headers = with_record({"id": "liar"}, a_letter(task_id="liar").record)
    with closing(Connection(desk.project.url)) as connection:
        message = RawMessage(BODY, application_headers={**headers, "dlx-dead-queue": queue}, delivery_mode=2)
        connection.default_channel.basic_publish(message, "", desk.dead_queue("classic"))
    desk.bury("honest")
    desk.lying(2)

    done = desk.dlx("replay", "--all", "--yes", code=1)

    assert done.stdout.splitlines()[-1] == "1 replayed, 1 kept"
    assert "kept liar: The dead letter stays: " in done.stdout
    assert not set("\x1b\x07\u202e") & set(done.output)
    desk.lying(1)


def test_a_letter_that_names_a_queue_of_others_is_no_canary(desk, victim):
    desk.bury("liar", queue=victim)
    desk.lying(1)

    refused = desk.dlx("replay", "--all", "--canary", "1", "--yes", code=1)

    assert "Stopped: none of them has a task id and a known work queue" in refused.stderr
    desk.lying(1)


@pytest.mark.parametrize("dead_letter_key", ["x" * 255, "\ud800", "\x1b[2J"])
def test_a_forged_family_does_not_stop_the_canaries(desk, dead_letter_key):
    headers = with_record({"id": "x"}, a_letter(queue=desk.work["classic"], task_id="x").record)
    with closing(Connection(desk.project.url)) as connection:
        message = RawMessage(BODY, application_headers={**headers, "dlx-dead-family": dead_letter_key}, delivery_mode=2)
        connection.default_channel.basic_publish(message, "", desk.dead_queue("classic"))
    desk.lying(1)

    words = ("--canary", "1", "--canary-wait", "0", "--silence-is-success", "--yes")
    done = desk.dlx("replay", "--all", *words)

    assert done.stdout.splitlines()[-1] == "1 replayed"


def test_a_copy_of_a_broadcast_queue_is_a_queue_of_the_app():
    app = Celery("shop", broker="amqp://", set_as_current=False)
    app.conf.task_queues = [Broadcast("news"), Broadcast("rates", queue="rates", unique=True)]
    destination = Destinations(app, named=(), to_queue=None)

    assert destination(a_letter(queue="bcast.0815", dead_letter_key="news")) == "bcast.0815"
    assert destination.dead_letters(a_letter(queue="bcast.0815", dead_letter_key="news")) == "news.dead"
    assert destination.dead_letters(a_letter(queue="rates.0815", dead_letter_key="forged")) == "rates.dead"
    with pytest.raises(NoDestination, match="'orders', which this app does not know"):
        destination(replace(a_letter(queue="orders", dead_letter_key="news"), queue="news.dead"))


def test_in_a_dead_letter_queue_that_all_share_a_letter_may_name_queues_of_the_app_only():
    app = Celery("shop", broker="amqp://", set_as_current=False)
    app.conf.task_default_queue, app.conf.dlx_dead_letter_queue = "orders", "all.dead"
    app.conf.task_routes = {"mail.*": {"queue": "mails"}}
    letters = [replace(a_letter(queue=name), queue="all.dead") for name in ("orders", "mails", "others", "")]

    destination = Destinations(app, named=(), to_queue=None)

    assert [destination(it) for it in letters[:2]] == ["orders", "mails"]
    for letter in letters[2:]:
        with pytest.raises(NoDestination):
            destination(letter)
        assert Destinations(app, named=["others"], to_queue="others")(letter) == "others"
