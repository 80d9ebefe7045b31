"""Dead letters that are made to break the commands: unreadable headers, deep bodies, many megabytes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from contextlib import closing

import pytest
from kombu.connection import Connection
from support import UNDECODABLE, RawProperties, raw_properties, raw_text

KINDS = ("classic", "quorum")
NAMES = ("tables nested 5,000 levels", "a time of 64 bits", "a property in Latin-1")
MEGABYTE = 2**20
# Runs a command and writes the most memory that it had: not ru_maxrss, which has that of the parent in it.
MEASURED = """
import re, sys
from celery.__main__ import main
try:
    main()
finally:
    print("peak", re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read()).group(1), file=sys.stderr)
"""


def lay(desk, kind, *messages):
    """Put messages into a dead-letter queue as bytes: body, headers and texts."""
    with Connection(desk.project.url) as connection, closing(connection.channel()) as channel:
        channel.confirm_select()
        for body, headers, texts in messages:
            properties = raw_properties(headers, {0x8000: b"application/json", 0x4000: b"utf-8", **texts})
            channel.basic_publish_confirm(RawProperties(body, properties), routing_key=desk.dead_queue(kind))


@pytest.fixture(params=KINDS)
def undecodable(desk, request):
    """Letters that py-amqp cannot decode, each between two ordinary ones."""
    names = {f"bad-{number}": name for number, name in enumerate(NAMES)}
    for number, (task_id, name) in enumerate(names.items()):
        desk.bury(f"good-{number}", request.param)
        headers, texts, _ = UNDECODABLE[name]
        lay(desk, request.param, (b"[[], {}, {}]", {"id": raw_text(task_id), **headers}, texts))
    desk.bury("good-last", request.param)
    desk.lying(2 * len(names) + 1, request.param)
    desk.kind = request.param
    return list(names)


def test_no_command_stops_at_a_letter_that_cannot_be_read(desk, undecodable, tmp_path):
    listed = desk.dlx("list", "--json")
    grouped = desk.json("groups")
    exported = desk.dlx("export", "-o", str(tmp_path / "letters"))
    shown = desk.dlx("show", undecodable[0])
    desk.dlx("show", undecodable[0], "--json")

    assert len(listed.stdout.splitlines()) == 2 * len(undecodable) + 1
    assert sum(row["count"] for row in grouped) == 2 * len(undecodable) + 1
    assert exported.stderr.endswith(f"{2 * len(undecodable) + 1} exported\n")
    # RabbitMQ 4.3 delivers from quorum queues by priority.
    assert re.search(
        rf"Note: the letter at position \d of {re.escape(desk.dead_queue(desk.kind))} \(task id bad-0, "
        r"body of 12 bytes\) has headers that cannot be read: x \(35005 bytes\)\.\n",
        listed.stderr,
    )
    assert "`dead list --unreadable` shows such letters" in listed.stderr
    assert shown.stdout.startswith("(no task) bad-0\n")


def test_letters_that_cannot_be_read_are_found_and_purged_exactly(desk, undecodable):
    desk.dlx("purge", undecodable[0], "--yes")
    desk.lying(2 * len(undecodable), desk.kind)

    assert [row["task_id"] for row in desk.json("list", "--unreadable")] == undecodable[1:]
    purged = desk.dlx("purge", "--unreadable", "--yes").stdout
    assert purged.partition(";")[0].strip() == f"{len(undecodable) - 1} purged"
    desk.lying(len(undecodable) + 1, desk.kind)
    assert all(task_id.startswith("good") for task_id in desk.dead_ids(desk.kind))


def test_a_replay_says_that_it_sends_letters_without_what_cannot_be_read(desk, undecodable):
    done = desk.dlx("replay", "--all", "--yes", "--to-queue", desk.work["classic"])

    assert f"With headers that cannot be read: {len(undecodable)}. They are sent without these headers." in done.stderr
    found = desk.take(desk.work["classic"])
    assert len(found) == 2 * len(undecodable) + 1
    assert not any({"x", "dlx-unreadable"} & set(message.headers) for message in found)


def test_an_export_of_what_cannot_be_read_is_imported_again(desk, undecodable, tmp_path):
    file = str(tmp_path / "letters")
    desk.dlx("export", "--unreadable", "-o", file)
    desk.dlx("purge", "--unreadable", "--yes")

    desk.dlx("import", file, "--yes")

    assert [row["task_id"] for row in desk.json("list", "--unreadable")] == undecodable


@pytest.mark.parametrize("levels", [150, 300, 900, 100_000])
def test_a_deeply_nested_body_is_shown_or_is_said_to_be_deep(desk, levels):
    arguments = b"[" * levels + b"]" * levels
    lay(desk, "classic", (b"[[%s], {}, {}]" % arguments, {"id": raw_text("deep")}, {}))
    desk.lying(1, "classic")

    shown, as_json = desk.dlx("show", "deep", "--args"), desk.json("show", "deep", "--args")

    assert ("nested deeper than 200 levels" in shown.stdout) == (levels > 200)
    assert ("args" in as_json[0]["arguments"]) == (levels < 200)
    desk.dlx("edit", "deep", "--set", "0=1", "--no-check", "--yes", code=0 if levels < 200 else 1)
    desk.dlx("replay", "deep", "--detach", "--yes", "--to-queue", desk.work["classic"], code=0 if levels < 200 else 1)


def peak(desk, *arguments, **options):
    """The most megabytes that a command had."""
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, "-A", "project", "dlx", "dead", *arguments],
        env={**desk.project.environment(), **desk._api},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        timeout=120,
        **options,
    )
    assert done.returncode == 0, done.stderr
    return int(done.stderr.split()[-1]) / 1024


@pytest.mark.parametrize("kind", KINDS)
def test_a_command_needs_memory_for_a_few_letters_and_not_for_all(desk, kind, tmp_path):
    count, size = 30, 4 * MEGABYTE
    body = b'[["%s"], {}, {}]' % (b"x" * size)
    lay(desk, kind, *((body, {"id": raw_text(f"{number}")}, {}) for number in range(count)))
    desk.lying(count, kind)

    alone = peak(desk, "--help")
    extra = {
        "list": peak(desk, "list"),
        "export": peak(desk, "export", "-o", str(tmp_path / "letters")),
        "replay": peak(desk, "replay", "--all", "--yes", "--to-queue", desk.dead_queue(kind)),
        "purge": peak(desk, "purge", "--all", "--yes"),
    }

    assert {
        name: round(most - alone) for name, most in extra.items() if most - alone > 60
    } == {}  # all letters have 120


def test_a_replay_does_not_parse_arguments(desk):
    body = json.dumps([[[[0]] * 600_000], {}, {"callbacks": [{"task": "x"}], "chord": None}]).encode()
    lay(desk, "classic", (body, {"id": raw_text("long")}, {}))
    desk.lying(1, "classic")

    alone = peak(desk, "--help")
    planned = desk.dlx("replay", "long", "--dry-run", "--to-queue", desk.work["classic"]).stderr
    extra = {
        name: peak(desk, *line)
        for name, line in {
            "show": ("show", "long"),
            "replay": ("replay", "long", "--yes", "--to-queue", desk.work["classic"]),
        }.items()
    }

    assert "With links: 1." in planned
    assert {name: round(most - alone) for name, most in extra.items() if most - alone > 6 * len(body) / MEGABYTE} == {}
