"""Dead letters with forged numbers in their headers: no command ends in a traceback for one."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from types import SimpleNamespace

import pytest
from amqp import Message as RawMessage
from click.testing import CliRunner
from kombu.connection import Connection

from celery_dlx_retry.cli import dlx
from celery_dlx_retry.wire.headers import MOST_COUNT

BODY = json.dumps([[], {}, {}])
MOST = 2**63 - 1
RECORD = {"dlx-dead-reason": "failed", "dlx-dead-task": "project.succeed", "dlx-dead-died-at-ms": 1}
RECORD |= {"dlx-dead-worker": "w", "dlx-dead-attempts": 1}
NUMBERS = (MOST, -(2**63), -1, 0.5, 1e300, True, Decimal("1.5"), b"\xff", "9" * 30, [MOST], {"a": MOST}, None)
NAMES = ("dlx-replays", "dlx-dead-attempts", "dlx-dead-died-at-ms", "dlx-first-failed-at", "retries", "dlx-parked-at")
NAMES += ("eta", "expires", "timelimit", "x-death", "group_index")
ROWS = [[number] * 2 + ["E", number, "w", "OSError", number] for number in (MOST, -(2**63), 2**70, 1e300, 10**1000)]
DEATH = {"queue": [1], "reason": 5, "count": MOST, "time": dt.datetime(9999, 12, 31), "routing-keys": [MOST]}  # noqa: DTZ001
HEADERS = (
    *({name: number} for name in NAMES for number in NUMBERS),
    *({"dlx-history": json.dumps([row] * count)} for row in ROWS for count in (1, 25)),
    *({"dlx-rule-retries": json.dumps({"0": row[0]})} for row in ROWS),
    *({"eta": eta} for eta in ("9999-12-31T23:59:59-14:00", "0001-01-01T00:00:00+14:00")),
    *({"x-death": deaths} for deaths in ([DEATH], [DEATH, 5], [5], DEATH)),
    {"dlx-dead-reason": None, "x-death": [DEATH]},
    {"odd": Decimal(-(2**31))},  # py-amqp reads it, and we do not write it
)


@pytest.fixture
def numbers(desk):
    """Lay one dead letter for each of these headers, into a classic or a quorum queue; all have the same id."""
    kinds = [("classic", "quorum")[number % 2] for number in range(len(HEADERS))]
    with Connection(desk.project.url) as connection:
        channel = connection.channel()
        channel.confirm_select()
        for number, (kind, forged) in enumerate(zip(kinds, HEADERS, strict=True)):
            headers = {"id": "one", "task": "project.succeed", "lang": "py", **RECORD, "dlx-dead-task-id": "one"}
            headers |= {"dlx-dead-queue": desk.work[kind], "number": number, **forged}
            message = RawMessage(BODY, application_headers=headers, content_type="application/json")
            channel.basic_publish_confirm(message, routing_key=desk.dead_queue(kind))
    desk.lying(len(HEADERS))
    yield list(range(len(HEADERS)))
    desk.clear()


def run(desk, *arguments, code=0):
    done = CliRunner().invoke(dlx, arguments, obj=SimpleNamespace(app=desk.app), env=desk._api)
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code in {code, 0}, done.output
    return done.stdout


def test_each_command_gets_past_forged_letters(desk, numbers, tmp_path):
    file = tmp_path / "letters"

    listed = [
        len(run(desk, "dead", "list", "--limit=9999", "--json", *options).splitlines())
        for options in ([], ["--sort=attempts"], ["--older-than=1h"])
    ]
    groups = run(desk, "dead", "groups", "--json")
    shown = run(desk, "dead", "show", "one", "--args", "--json")
    run(desk, "dead", "export", "--output", str(file))

    assert f"{len(numbers)} dead letters" in run(desk, "dead", "list")
    assert listed[:2] == [len(numbers)] * 2
    assert run(desk, "dead", "groups")
    assert sum(json.loads(line)["count"] for line in groups.splitlines()) == len(numbers)
    assert sorted(json.loads(line)["headers"]["number"] for line in shown.splitlines()) == numbers
    assert run(desk, "dead", "show", "one").count("project.succeed one\n") == len(numbers)
    assert sorted(json.loads(line)["headers"]["number"] for line in file.read_text().splitlines()) == numbers
    run(desk, "status", code=1)
    run(desk, "doctor", code=1)


def test_a_forged_letter_does_not_stop_the_replay_of_the_others(desk, numbers):
    text = run(desk, "dead", "replay", "--all", "--yes", code=1)

    left = [letter.message.headers for kind in desk.work for letter in desk.letters(kind)]
    moved = [message.headers for queue in desk.work.values() for message in desk.take(queue)]
    assert sorted(headers["number"] for headers in (*left, *moved)) == numbers
    assert {0, 1} >= {headers["dlx-replays"] for headers in moved} - {MOST_COUNT}
    assert len([line for line in text.splitlines() if "one" in line]) == len(numbers)
