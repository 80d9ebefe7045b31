"""``celery dlx dead replay``: what is meant goes back to work, at the pace that was asked for, and nothing is lost."""

from __future__ import annotations

import json
import signal
import statistics
import time
from collections import Counter

import pytest
from celery import Celery
from support import eventually

from celery_dlx_retry.operations import replay as replay_module


def taken(desk, kind):
    return [message.headers["id"] for message in desk.take(desk.work[kind])]


def test_a_dry_run_says_what_would_be_done_and_does_nothing(desk):
    link = {"task": "project.succeed", "args": [], "kwargs": {}, "options": {}}
    desk.bury("a", embed={"chord": link, "errbacks": [link]})
    desk.bury("b", "quorum", error_type="KeyError")
    desk.lying(2)

    planned = desk.dlx("replay", "--exception", "ValueError", "--dry-run")
    missed = desk.dlx("replay", "b", "missing", "--dry-run", code=1)

    assert planned.stdout.splitlines() == [f"would replay a to {desk.work['classic']}", "1 would be replayed"]
    assert planned.stderr.splitlines() == [
        "In a chord: 1. One that has counted a failure does not take it back.",
        "With error links: 1. They are called again after another failure.",
        "With a result: 1. The stored result stays until the task ends again and stores a new one.",
    ]
    assert "audit" not in planned.stderr
    assert missed.stdout.splitlines()[-1] == "1 would be replayed"
    assert missed.stderr.splitlines()[-1] == "Not found: task id missing."
    desk.lying(2)


def test_a_group_goes_to_another_queue_and_detached_from_links_chord_and_result(desk):
    link = {"task": "project.succeed", "args": [], "kwargs": {}, "options": {}}
    embed = {"chord": link, "callbacks": [link], "errbacks": [link], "chain": [link]}
    desk.bury("a", args=[1], embed=embed, reply_to="somebody", headers={"group": "g", "group_index": 1})
    desk.bury("b", error_type="KeyError")
    desk.bury("pickled", serializer="pickle")
    desk.lying(3)
    group = next(letter.fingerprint.group for letter in desk.letters("classic") if letter.record.task_id == "a")
    desk.lying(3)

    rows = desk.json("replay", "--group", group, "--to-queue", desk.work["quorum"], "--detach", "--yes", code=1)

    (message,) = desk.take(desk.work["quorum"])
    assert json.loads(message.body) == [[1], {}, {"callbacks": None, "errbacks": None, "chain": None, "chord": None}]
    assert message.headers["id"] == "a"
    assert (message.headers["group"], message.headers["ignore_result"]) == (None, True)
    assert "reply_to" not in message.properties
    assert [row["event"] for row in rows] == ["replayed", "kept", "summary"]
    assert "not JSON" in rows[1]["problem"]
    desk.lying(2)


def test_whoever_says_nothing_is_told_what_to_say_and_who_says_no_is_heard(desk):
    desk.bury("a")
    desk.lying(1)

    aimless = desk.dlx("replay", code=2)
    refused = desk.dlx("replay", "a", "missing", code=1, answer="n\n")
    no_rate = desk.dlx("replay", "--all", "--rate", "fast", code=2)
    found = desk.shell("replay", "a", "missing", "--yes", code=1)

    assert "Give task ids, filters, or --all." in aimless.stderr
    assert f"Replay 1 dead letter (1 in {desk.dead_queue('classic')})?" in refused.stderr
    assert "'fast' is not a rate: 50/s, 600/m or 100/h." in no_rate.stderr
    assert found.stdout.splitlines() == [f"replayed a to {desk.work['classic']}", "1 replayed"]
    assert "\nNot found: task id missing.\n" in found.stderr
    assert "audit dead replay by=" in found.stderr
    assert taken(desk, "classic") == ["a"]


def test_a_rate_is_held_within_five_percent(desk):
    for number in range(201):
        desk.bury(str(number), "quorum")
    desk.lying(201)

    with desk.popen("replay", "--all", "--rate", "50/s", "--yes") as process:
        moments = [time.monotonic() for line in process.stdout if line.startswith("replayed")]

    assert len(moments) == 201
    # The reader may be late for some lines: the middle one of all stretches of a hundred is not.
    stretches = [after - before for before, after in zip(moments, moments[100:], strict=False)]
    assert 100 / statistics.median(stretches) == pytest.approx(50, rel=0.05)


def test_a_replay_that_reads_its_queues_many_times_moves_each_letter_once(desk, monkeypatch):
    """As it does after ten minutes, lest the broker take offence at what is held for long."""
    monkeypatch.setattr(replay_module, "_PASS_SECONDS", 0.0)
    for number in range(8):
        desk.bury(f"{number}", ("classic", "quorum")[number % 2], task=("shop.a", "shop.b")[number // 4])
    desk.lying(8)

    # What is put there has died again at once.
    done = desk.dlx("replay", "--task", "shop.a", "--to-queue", desk.dead_queue("classic"), "--yes")

    assert done.stdout.splitlines()[-1] == "4 replayed"
    desk.lying(8)
    assert sorted(letter.replays for letter in desk.letters("classic")) == [0, 0, 1, 1, 1, 1]


def test_letters_without_a_task_id_are_moved_each_once_too(desk, monkeypatch):
    monkeypatch.setattr(replay_module, "_PASS_SECONDS", 0.0)
    for text in ("a", "a", "b"):
        desk.bury("", args=[text])
    desk.lying(3)

    done = desk.dlx("replay", "--all", "--to-queue", desk.dead_queue("quorum"), "--yes")

    assert done.stdout.splitlines()[-1] == "3 replayed"
    assert [letter.replays for letter in desk.letters("quorum")] == [1, 1, 1]


def test_what_dies_while_somebody_reads_the_question_is_not_replayed(desk, monkeypatch):
    desk.bury("old")
    desk.lying(1)

    def agreed(_text, **_):
        desk.bury("new")
        desk.lying(2)
        return True

    monkeypatch.setattr("click.confirm", agreed)
    done = desk.dlx("replay", "--all")

    assert done.stdout.splitlines()[-1] == "1 replayed"
    assert "queues=all chosen=all" in done.stderr
    assert taken(desk, "classic") == ["old"]
    desk.lying(1)


def test_whose_links_cannot_be_read_is_told_before_it_is_replayed(desk):
    desk.bury("pickled", serializer="pickle")
    desk.lying(1)

    asked = desk.dlx("replay", "pickled", code=1, answer="n\n")

    assert asked.stderr.index("Not readable here: 1.") < asked.stderr.index("Replay 1 dead letter")


def test_ten_kills_in_the_middle_lose_nothing_and_double_one_each_at_most(desk):
    expected = set()
    for kind in ("classic", "quorum"):
        for number in range(300):  # more than ten can move before they are killed
            desk.bury(f"{kind}-{number}", kind)
            expected.add(f"{kind}-{number}")
    desk.lying(600)

    for _ in range(10):
        with desk.popen("replay", "--all", "--yes") as process:
            for _, _ in zip(range(20), process.stdout, strict=False):
                pass
            process.kill()
        assert process.returncode == -signal.SIGKILL
    desk.dlx("replay", "--all", "--yes")

    desk.lying(0)
    there = Counter(taken(desk, "classic") + taken(desk, "quorum"))
    assert set(there) == expected
    assert sum(there.values()) - len(expected) <= 10


def test_a_replay_whose_output_nobody_reads_stops_says_so_and_loses_nothing(desk):
    for number in range(150):
        desk.bury(str(number))
    desk.lying(150)

    with desk.popen("replay", "--all", "--yes") as process:
        process.stdout.readline()
        process.stdout.close()
        told = process.stderr.read().splitlines()

    assert process.returncode == 1
    assert told[0].startswith("audit dead replay by=")
    assert told[1:] == ["Stopped: the output was closed."]
    there = taken(desk, "classic")
    desk.lying(150 - len(there))
    assert not set(there) & set(desk.dead_ids("classic"))


def test_ctrl_c_in_the_middle_loses_and_doubles_nothing_and_two_operators_at_once_do_no_harm(desk):
    expected = {f"{kind}-{number}" for kind in ("classic", "quorum") for number in range(60)}
    for name in sorted(expected):
        desk.bury(name, name.partition("-")[0])
    desk.lying(120)

    with desk.popen("replay", "--all", "--yes") as process:
        for _, _ in zip(range(20), process.stdout, strict=False):
            pass
        process.send_signal(signal.SIGINT)
        told = process.stderr.read()
    with desk.popen("replay", "--all", "--yes") as one, desk.popen("replay", "--all", "--yes") as other:
        one.communicate(timeout=30)
        other.communicate(timeout=30)
    desk.dlx("replay", "--all", "--yes")

    assert "audit dead replay" in told
    assert "Traceback" not in told
    there = Counter(taken(desk, "classic") + taken(desk, "quorum"))
    assert set(there) == expected
    assert sum(there.values()) <= len(expected) + 1  # who is interrupted between confirm and acknowledgement


def test_the_rest_follows_when_the_canaries_succeed(staffed_desk):
    desk = staffed_desk
    for number in range(6):
        desk.bury(f"good-{number}", "quorum", args=[number])
    desk.lying(6)

    done = desk.shell("replay", "--all", "--canary", "2", "--yes", "--json")
    rows = [json.loads(line) for line in done.stdout.splitlines()]

    canary = next(row for row in rows if row["event"] == "canary")
    assert canary["outcomes"] == {"good-0": "succeeded", "good-1": "succeeded"}
    assert rows[-1]["replayed"] == 6
    eventually(lambda: len(desk.project.records(task="project.succeed")) == 6)


def test_the_rest_stays_dead_when_canaries_die_again(staffed_desk):
    desk = staffed_desk
    for number in range(5):
        desk.bury(f"bad-{number}", task="project.fail", args=["still broken"], headers={"ignore_result": True})
    desk.lying(5)

    words = ("--canary", "2", "--stop-on-fail", "50%", "--silence-is-success")
    stopped = desk.shell("replay", "--all", *words, "--yes", code=1)

    assert "Stopped: the canaries say 2 died again. The rest is still dead." in stopped.stderr
    eventually(lambda: len(desk.letters("classic")) == 5)
    assert sorted(letter.replays for letter in desk.letters("classic")) == [0, 0, 0, 1, 1]
    desk.lying(5)
    desk.clear()


def test_canaries_that_store_no_result_are_not_even_sent_and_silence_is_success_only_by_word(staffed_desk):
    desk = staffed_desk
    for number in range(4):
        desk.bury(f"mute-{number}", headers={"ignore_result": True})
    desk.lying(4)

    stopped = desk.dlx("replay", "--all", "--canary", "2", "--yes", code=1)
    desk.lying(4)
    trusted = desk.dlx("replay", "--all", "--canary", "1", "--canary-wait", "1", "--silence-is-success", "--yes")

    assert "2 of 2 canaries store no result (ignore_result)" in stopped.stderr
    assert "Nothing was moved" in stopped.stderr
    assert trusted.stdout.splitlines()[-1] == "4 replayed"


def test_letters_without_a_task_id_are_no_canaries(desk):
    for number in range(3):
        desk.bury("", args=[number])
    desk.lying(3)

    only = desk.dlx("replay", "--all", "--canary", "1", "--yes", code=1)
    desk.bury("a")
    desk.lying(4)
    desk.dlx("replay", "--all", "--canary", "1", "--canary-wait", "0", "--yes", code=1)

    assert "Stopped: none of them has a task id" in only.stderr
    assert taken(desk, "classic") == ["a"]
    desk.lying(3)


def test_a_canary_is_one_letter_also_if_many_have_its_task_id(desk):
    for number in range(5):
        desk.bury("a", args=[number])
    desk.lying(5)

    desk.dlx("replay", "--all", "--canary", "1", "--canary-wait", "0", "--yes", code=1)

    assert taken(desk, "classic") == ["a"]
    desk.lying(4)


def test_the_rest_stays_dead_if_no_canary_can_be_replayed(desk):
    gone = f"{desk.project.prefix}.gone"
    queues = {**desk.project.conf["task_queues"], gone: {"exchange": gone, "routing_key": gone}}
    app = Celery("canary", config_source={**desk.project.conf, "task_queues": queues}, set_as_current=False)
    desk.bury("a", queue=gone)
    desk.bury("b")
    desk.lying(2)

    stopped = desk.dlx("replay", "--all", "--canary", "1", "--canary-wait", "0", "--yes", app=app, code=1)

    assert "Stopped: no canary could be replayed. The rest was not moved" in stopped.stderr
    desk.lying(2)


@pytest.mark.parametrize("words", [["--stop-on-fail", "2%"], ["--canary-wait", "5"], ["--silence-is-success"]])
def test_what_is_about_canaries_needs_some(desk, words):
    done = desk.dlx("replay", "--all", "--yes", *words, code=2)

    assert f"{words[0]} is about canaries: give it with --canary." in done.stderr


def test_a_canary_that_nobody_has_run_in_time_is_not_known(desk):
    desk.bury("a")
    desk.bury("b")
    desk.lying(2)

    stopped = desk.dlx("replay", "--all", "--canary", "1", "--canary-wait", "0.5", "--yes", code=1)

    assert "1 not known after 0.5 s" in stopped.stderr
    assert "Wait longer with --canary-wait" in stopped.stderr
    desk.lying(1)


@pytest.mark.parametrize(
    ("backend", "why"),
    [
        ("disabled://", "this app has no result backend"),
        ("rpc://", "rpc:// gives a result only to the sender of the task"),
        ("redis://127.0.0.1:1/0", "the result backend does not answer (ConnectionError)"),
        ("nonsense://", "the result backend does not answer ("),
    ],
)
def test_canaries_whom_nobody_could_see_succeed_are_refused_before_anything_moves(desk, backend, why):
    desk.bury("a")
    desk.lying(1)
    app = Celery("blind", config_source={**desk.project.conf, "result_backend": backend}, set_as_current=False)

    refused = desk.dlx("replay", "--all", "--canary", "1", "--yes", app=app, code=2)

    assert f"cannot: {why}" in refused.stderr
    assert "result_backend" in refused.stderr
    assert "--silence-is-success" in refused.stderr
    desk.lying(1)
