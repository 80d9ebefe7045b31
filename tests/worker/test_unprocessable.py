"""Messages that no task can take are kept, and the worker lives."""

from __future__ import annotations

import json

import pytest
from kombu.connection import Connection
from kombu.messaging import Producer
from support import eventually

BODY = json.dumps([[], {}, {}])
JSON = {"content_type": "application/json", "content_encoding": "utf-8"}

STRAYS = {
    "unknown-task": ({"task": "nobody.knows", "id": "1"}, BODY, JSON, "unknown-task"),
    "forged lines": ({"task": "nobody.knows\nforged", "id": "1\nforged"}, BODY, JSON, "unknown-task"),
    "no id": ({"task": "project.succeed"}, BODY, JSON, "invalid"),
    "no task": ({}, json.dumps({"hello": "world"}), JSON, "invalid"),
    "not json": ({"task": "project.succeed", "id": "1"}, "{", JSON, "undecodable"),
    "no json and no task": ({}, "{", JSON, "undecodable"),
    "bad eta": ({"task": "project.succeed", "id": "1", "eta": "soon"}, BODY, JSON, "invalid"),
    "bad gzip": ({"task": "project.succeed", "id": "1", "compression": "application/x-gzip"}, "?", JSON, "undecodable"),
    "forbidden content": (
        {"task": "project.succeed", "id": "1"},
        "a: 1",
        {"content_type": "application/x-yaml", "content_encoding": "utf-8"},
        "invalid",
    ),
}


def test_each_stray_is_a_dead_letter_with_its_reason_and_the_worker_lives(project):
    with project.worker() as worker, Connection(project.url) as connection:
        producer = Producer(connection)
        for name, (headers, body, content, _) in STRAYS.items():
            producer.publish(
                body, routing_key=project.queue, headers=headers, message_id=name, delivery_mode=2, **content
            )
        eventually(lambda: len(project.dead()) == len(STRAYS))

        assert project.send("succeed", 1).get(timeout=10) == 1
        assert worker.process.poll() is None
        assert r"dead letter task=nobody.knows\nforged id=1\nforged reason=unknown-task attempts=1" in worker.log

    letters = {letter.message.properties["message_id"]: letter for letter in project.dead()}
    assert {name: str(letter.record.reason) for name, letter in letters.items()} == {
        name: reason for name, (_, _, _, reason) in STRAYS.items()
    }
    for name, (headers, body, content, _) in STRAYS.items():
        message = letters[name].message
        assert message.body in {body, body.encode()}
        assert message.content_type == content["content_type"]
        assert headers.items() <= message.headers.items()
    assert project.depth(project.queue) == 0


def test_a_stray_that_cannot_be_kept_now_stays_until_it_can(project, broker, prefix):
    project.conf["dlx_queue_type"] = "classic"  # whose limit is exact
    dead = project.names.dead_letters(project.queue)
    broker.ctl("set_policy", prefix, f"^{dead}$", '{"max-length": 0, "overflow": "reject-publish"}')
    try:
        with project.worker() as worker:
            project.app.send_task("nobody.knows")
            eventually(lambda: worker.log.count("not handed over task= id=: ") >= 2)
            assert project.send("succeed", 1).get(timeout=10) == 1
            broker.ctl("clear_policy", prefix)

            (letter,) = eventually(project.dead)
    finally:
        broker.ctl("set_policy", prefix, "^nothing$", '{"max-length": 0}')
        broker.ctl("clear_policy", prefix)

    assert letter.record.reason == "unknown-task"


@pytest.mark.parametrize("pool", ["solo", "threads"])
def test_strays_are_kept_by_other_pools_too(project, pool):
    with project.worker(pool=pool):
        project.app.send_task("nobody.knows")

        (letter,) = eventually(project.dead)

    assert letter.record.reason == "unknown-task"
