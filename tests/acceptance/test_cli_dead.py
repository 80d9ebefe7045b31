"""``celery dlx dead`` as an operator types it: see, understand, delete, take away and bring back."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import pickle
import stat
import time
from dataclasses import replace
from pathlib import Path

import pytest
from amqp import Message as RawMessage
from celery import Celery
from kombu.connection import Connection
from support import eventually

from celery_dlx_retry.operations.select_letters import LetterQuery, SeenLetters, SelectedLetters
from tests.unit.letters import a_letter

HOUR_MS = 3_600_000


def ids(rows):
    return [row["task_id"] for row in rows]


def raw(desk, queue, body, **properties):
    with Connection(desk.project.url, transport_options={"confirm_publish": True}) as connection:
        connection.default_channel.basic_publish(RawMessage(body, delivery_mode=2, **properties), "", queue)


def test_list_shows_all_queues_of_the_app_with_their_orphans_and_finds_by_every_filter(desk):
    now_ms = time.time_ns() // 1_000_000
    desk.bury("a", task="shop.charge", error="order-1 is PAID")
    desk.bury("b", "quorum", task="shop.ship", error_type="KeyError", attempts=3, reason="exhausted")
    desk.bury("c", task="mail.send", died_at_ms=now_ms - 5 * HOUR_MS, traceback="")
    raw(desk, desk.project.names.orphans(), b"[]", application_headers={"id": "d", "task": "shop.lost"})
    desk.lying(3)

    found = {row["task_id"]: row for row in desk.json("list")}
    texts = desk.shell("list", "--sort", "died", "--limit", "2")

    assert set(found) == {"a", "b", "c", "d"}
    assert found["b"]["dead_letter_queue"] == desk.dead_queue("quorum")
    assert found["a"]["where"] == "shop/tasks.py:charge"
    assert texts.stdout.splitlines()[-1] == "4 dead letters, 2 shown"
    head, _, second, _ = (line.split("\t") for line in texts.stdout.splitlines())  # nobody knows when d died
    assert dict(zip(head, second, strict=True))["id"] == "c"
    for expected, options in {
        "b": ("-q", desk.work["quorum"]),
        "a b d": ("--task", "shop.*"),
        "c": ("--older-than", "2h", "--task", "mail.send", "--reason", "failed"),
        "a": ("--text", "paid", "--newer-than", "1h", "--exception", "Value*", "--group", found["a"]["group"]),
    }.items():
        assert sorted(ids(desk.json("list", *options))) == expected.split()


def test_letters_of_all_queues_are_listed_by_their_time_of_death(desk):
    for at_ms, kind in enumerate(("quorum", "classic", "quorum", "classic"), start=1):
        desk.bury(f"{at_ms}", kind, died_at_ms=at_ms)
    desk.lying(4)

    assert ids(desk.json("list")) == ["1", "2", "3", "4"]
    assert ids(desk.json("list", "--reverse", "--limit", "2")) == ["4", "3"]


def test_a_queue_alone_says_which_letters_are_meant(desk):
    desk.bury("a")
    desk.bury("b", "quorum")
    desk.lying(2)

    planned = desk.dlx("replay", "-q", desk.work["classic"], "--dry-run")
    refused = desk.dlx("purge", "-q", desk.work["quorum"], code=1, answer="n\n")
    desk.dlx("purge", "-q", desk.work["quorum"], "--yes")
    both = desk.dlx("purge", "--all", "--task", "x", "--yes", code=2)

    assert planned.stdout.splitlines()[0] == f"would replay a to {desk.work['classic']}"
    assert "Delete 1 dead letter (" in refused.stderr
    assert "--all means all of them" in both.stderr
    desk.lying(1)
    assert desk.dead_ids("classic") == ["a"]


@pytest.mark.parametrize(
    "words", ["list", "groups", "export", "replay --dry-run", "replay --yes", "purge --yes", "list --json"]
)
def test_a_group_that_nothing_is_in_is_told_and_exit_code_1(desk, words):
    desk.bury("a")
    desk.lying(1)
    (known,) = {row["group"] for row in desk.json("list", "--task", "project.succeed")}

    done = desk.dlx(*words.split(), "--group", "deadbeef", "--group", known, "--task", "nobody", code=1)

    assert done.stderr.splitlines()[-1] == "Not found: group deadbeef."
    desk.lying(1)


def test_ids_that_are_not_there_are_named(desk):
    desk.bury("a")
    desk.lying(1)

    purged = desk.dlx("purge", "gone-2", "a", "gone-1", "--yes", code=1)

    assert purged.stdout == "1 purged\n"
    assert purged.stderr.splitlines()[-1] == "Not found: task id gone-1, task id gone-2."


def test_of_a_dead_letter_queue_that_all_share_only_the_named_work_queue_is_meant():
    app = Celery("shop", broker="amqp://", set_as_current=False)
    app.conf.dlx_dead_letter_queue = "all.dead"
    selected = SelectedLetters(app, LetterQuery(queues=("orders",)))
    ours, theirs = (
        replace(a_letter(queue=name, dead_letter_key=name), queue="all.dead") for name in ("orders", "mails")
    )

    assert selected.matches(ours)
    assert not selected.matches(theirs)


@pytest.mark.parametrize("words", ["list --limit 300", "export"])
def test_whoever_reads_only_the_first_lines_leaves_everything_there(desk, words):
    for number in range(300):
        desk.bury(str(number), error="x" * 1000)
    desk.lying(300)

    with desk.popen(*words.split()) as process:
        process.stdout.readline()
        process.stdout.close()
        told = process.stderr.read()

    assert (process.returncode, told) == (0, "")
    desk.lying(300)


def test_groups_count_by_exception_and_innermost_frame_of_our_own_code(desk):
    for number in range(3):
        desk.bury(f"a{number}", "quorum", died_at_ms=1_700_000_000_000 + number)
    desk.bury("b", error_type="KeyError")
    desk.bury("c", traceback="", error_type="", reason="worker-lost", task="shop.eat")
    desk.lying(5)

    groups = desk.json("groups")
    table = desk.shell("groups").stdout.splitlines()

    assert (groups[0]["count"], groups[0]["error_type"]) == (3, "ValueError")
    assert groups[0]["where"] == "shop/tasks.py:charge"
    assert {(group["error_type"], group["where"]) for group in groups[1:]} == {
        ("KeyError", "shop/tasks.py:charge"),
        ("worker-lost", "shop.eat"),
    }
    assert (groups[0]["first_died_at_ms"], groups[0]["last_died_at_ms"]) == (1_700_000_000_000, 1_700_000_000_002)
    assert groups[0]["sample_id"] == "a2"
    assert table[0].split("\t")[:6] == ["group", "count", "task", "queue", "reason", "error"]
    recent, trends = desk.json("groups", "--since", "1h"), desk.json("groups", "--trend")
    assert {(group["count"], group["error_type"]) for group in recent} == {(1, "KeyError"), (1, "worker-lost")}
    assert trends[0]["trend"].startswith("\N{FULL BLOCK}")
    assert "matches no letter" in desk.dlx("groups", "--group", "nonsense", code=1).stderr
    assert table[1].split("\t")[0] == groups[0]["group"]


class Bomb:
    """Writes a file when somebody unpickles it."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (Path.touch, (self.path,))


def test_show_tells_everything_but_arguments_only_when_asked_and_never_opens_a_pickle(desk, tmp_path):
    bomb = tmp_path / "exploded"
    desk.bury("json", args=["order-1"], kwargs={"card": "4111"}, embed={"chord": {"task": "x"}}, compression="gzip")
    desk.bury("pickled", "quorum", args=[Bomb(bomb)], serializer="pickle", headers={"argsrepr": "('order-2',)"})
    desk.lying(2)

    told = desk.dlx("show", "json").stdout
    (facts,) = desk.json("show", "json", "--args")
    with_args = desk.shell("show", "pickled", "--args").stdout
    missing = desk.dlx("show", "nobody", code=1)

    assert "4111" not in told
    assert "secret" not in told
    assert 'File "/srv/releases/7/shop/tasks.py", line 12, in charge' in told
    assert "attempt 1 on w@h: ValueError: no" in told
    assert facts["arguments"] == {"args": ["order-1"], "kwargs": {"card": "4111"}}
    assert facts["links"] == ["chord"]
    assert "('order-2',)" in with_args
    assert "application/x-python-serialize" in with_args
    assert not bomb.exists()
    assert missing.stderr == "No dead letter has the task id nobody.\n"
    desk.lying(2)


def test_show_names_the_rule_that_granted_a_retry(desk):
    desk.bury("ruled", rule={"rule": "TimeoutError", "rule_retry": 2})
    desk.lying(1)

    told = desk.dlx("show", "ruled").stdout
    (facts,) = desk.json("show", "ruled")

    assert "attempt 1 on w@h: ValueError: no, retry 2 of the rule for TimeoutError" in told
    assert (facts["history"][0]["rule"], facts["history"][0]["rule_retry"]) == ("TimeoutError", 2)


def test_purge_asks_deletes_only_what_is_meant_and_says_who_did_it(desk):
    now_ms = time.time_ns() // 1_000_000
    desk.bury("old", died_at_ms=now_ms - 5 * HOUR_MS)
    desk.bury("older", "quorum", died_at_ms=now_ms - 9 * HOUR_MS)
    desk.bury("new", "quorum")
    desk.lying(3)

    refused = desk.dlx("purge", "--older-than", "2h", code=1, answer="n\n")
    desk.lying(3)
    done = desk.shell("purge", "--older-than", "2h", "--yes")
    aimless = desk.dlx("purge", "--yes", code=2)

    places = f"1 in {desk.dead_queue('classic')}, 1 in {desk.dead_queue('quorum')}"
    assert f"Delete 2 dead letters ({places}) for good?" in refused.stderr
    assert done.stdout == "2 purged; 1 kept: not selected, or dead since the question\n"
    assert "audit dead purge by=" in done.stderr
    assert "purged=2" in done.stderr
    assert "Give task ids, filters, or --all." in aimless.stderr
    desk.lying(1)
    assert desk.dead_ids("quorum") == ["new"]


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_what_dies_while_somebody_reads_the_question_is_not_deleted(desk, kind, monkeypatch):
    desk.bury("old", kind)
    desk.bury("", kind, args=["old"])
    desk.lying(2)

    def agreed(text, **_):
        assert "Delete 2 dead letters" in text
        desk.bury("new", kind)
        desk.bury("", kind, args=["new"])
        desk.lying(4)
        return True

    monkeypatch.setattr("click.confirm", agreed)
    done = desk.dlx("purge", "--all")

    assert done.stdout == "2 purged; 2 kept: not selected, or dead since the question\n"
    desk.lying(2)
    assert desk.dead_ids(kind) == ["new", ""]


def test_a_question_does_not_spoil_the_json(desk):
    desk.bury("a")
    desk.lying(1)

    assert desk.json("purge", "a", answer="y\n") == [{"purged": 1, "kept": 0, "not_found": []}]


HEADERS = {
    "id": "x1",
    "task": "shop.charge",
    "bytes": b"\xff\x00",
    "time": dt.datetime(2026, 1, 2, 3, 4, 5),  # noqa: DTZ001 - as py-amqp has it
    "decimal": decimal.Decimal("1.25"),
    "nested": {"list": [1, 2.5, None, True, {"$bytes": "not ours"}], "large": 2**40},
}


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_what_was_exported_is_imported_as_it_was(desk, kind, tmp_path):
    queue, file = desk.dead_queue(kind), tmp_path / "letters.jsonl"
    properties = {"content_type": "application/x-python-serialize", "content_encoding": "binary", "priority": 3}
    body = pickle.dumps({"set": {1}}) + b"\xff"
    raw(desk, queue, body, application_headers=HEADERS, message_id="m1", reply_to="r", timestamp=17, **properties)
    desk.bury("x2", kind, args=["ä"])
    desk.lying(2)

    run = desk.shell if kind == "quorum" else desk.dlx
    exported = run("export", "-q", desk.work[kind], "-o", str(file))
    desk.lying(2)
    before = desk.take(queue)
    again = desk.dlx("export", "-o", str(file), code=2)
    imported = run("import", str(file), "--yes")

    after = desk.take(queue)
    assert exported.stderr == "2 exported\n"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert "exists" in again.stderr
    assert imported.stdout == "2 imported\n"
    assert "audit dead import by=" in imported.stderr
    assert [message.body for message in after] == [message.body for message in before]
    assert [seen(message) for message in after] == [seen(message) for message in before]


def seen(message):
    """Without what brokers count by themselves."""
    headers = {
        key: value for key, value in message.headers.items() if key not in {"x-delivery-count", "x-acquired-count"}
    }
    return {**message.properties, "application_headers": headers}


def test_a_file_with_a_broken_line_imports_nothing(desk, tmp_path):
    desk.bury("x")
    desk.lying(1)
    (tmp_path / "broken").write_text(desk.dlx("export").stdout + '{"format": "x"}\n')

    refused = desk.dlx("import", str(tmp_path / "broken"), "--yes", code=1)
    absent = desk.dlx("import", str(tmp_path / "absent"), "--yes", code=2)

    assert "Line 2 is not an exported dead letter" in refused.stderr
    assert "There is no file" in absent.stderr
    desk.lying(1)


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_what_lies_there_already_is_not_imported_again(desk, kind, tmp_path):
    file = tmp_path / "letters.jsonl"
    for name in ("a", "b"):
        desk.bury(name, kind, died_at_ms=1_700_000_000_000)
    raw(desk, desk.dead_queue(kind), b"by hand")  # neither id nor time of death
    desk.lying(3)
    desk.dlx("export", "-o", str(file))
    desk.lying(3)
    desk.dlx("purge", "b", "--yes")
    desk.lying(2)

    first = desk.json("import", str(file), "--yes")
    desk.lying(3)
    second = desk.json("import", str(file), "--yes")
    desk.lying(3)
    told = desk.dlx("import", str(file), "--yes")
    again = desk.dlx("import", str(file), "--yes", "--again")

    assert first == [{"imported": 1, "already_there": 2, "edited": 0}]
    assert second == [{"imported": 0, "already_there": 3, "edited": 0}]
    assert told.stdout == again.stdout == "0 imported, 3 already there\n"
    desk.lying(3)


def test_of_two_that_are_the_same_one_is_already_there():
    letter = a_letter(died_at_ms=17)
    with SeenLetters() as seen:
        seen.add(letter)

        assert [seen.take(it) for it in (replace(letter, queue="elsewhere"), letter, letter)] == [False, True, False]


def test_letters_come_in_through_a_pipe_and_go_out_with_their_number(desk, tmp_path):
    file = tmp_path / "letters.jsonl"
    desk.bury("a")
    desk.lying(1)

    exported = desk.json("export", "-o", str(file))
    line = desk.dlx("export", "--json").stdout
    desk.dlx("purge", "--all", "--yes")
    silent = desk.dlx("import", "-", code=2, answer=line)
    imported = desk.shell("import", "-", "--yes", answer=line)

    assert exported == [{"exported": 1, "file": str(file)}]
    assert line == file.read_text()
    assert "say --yes" in silent.stderr
    assert imported.stdout == "1 imported\n"
    desk.lying(1)


def test_an_orphan_keeps_its_work_queue_through_export_and_import(desk, tmp_path):
    names, file = desk.project.names, tmp_path / "orphan.jsonl"
    orphans = names.orphans()
    with Connection(desk.project.url) as connection:
        channel = connection.default_channel
        wait = f"{names.prefix}.v1.wait.classic.test"
        arguments = {"x-message-ttl": 1, "x-dead-letter-exchange": names.return_exchange()}
        channel.queue_declare(wait, durable=True, auto_delete=False, arguments=arguments)
        channel.exchange_declare(wait, "fanout", auto_delete=False)
        channel.queue_bind(wait, wait)
        message = RawMessage(b"[]", delivery_mode=2, application_headers={"id": "o", "task": "shop.charge"})
        channel.basic_publish(message, wait, f"{names.prefix}.gone")
    eventually(lambda: desk.project.depth(orphans))

    desk.dlx("export", "-q", orphans, "-o", str(file))
    desk.take(orphans)
    desk.dlx("import", str(file), "--yes")

    (letter,) = desk.json("list", "-q", orphans)
    assert (letter["reason"], letter["queue"]) == ("unroutable", f"{names.prefix}.gone")


def test_a_broker_that_is_down_and_a_queue_that_is_not_there_are_one_sentence_without_password(desk):
    url = "amqp://guest:verysecret@127.0.0.1:1//"
    conf = json.dumps({**desk.project.conf, "broker_url": url})

    down = desk.shell("list", code=1, PROJECT_CONF=conf)
    absent = desk.dlx("list", "-q", "nowhere", code=1)

    assert down.stderr == (
        "Error: The broker at 127.0.0.1:1, virtual host '/', cannot be used: [Errno 111] Connection refused.\n"
    )
    assert len(down.stderr.splitlines()) == 1
    assert "verysecret" not in down.stdout + down.stderr
    assert absent.stderr.startswith("Error: The dead-letter queue 'nowhere.dead' does not exist.")
