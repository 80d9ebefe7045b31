"""Commands: every option of every command with any value; a command ends in time, and no message gets lost."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from itertools import islice
from pathlib import Path

import click
import pytest

from celery_dlx_retry.cli import dlx
from tests.fuzz import values
from tests.fuzz.inputs import limited
from tests.fuzz.verdict import check_text

#: Between two looks at where every message is.
BATCH = 25
PROCESSES = 6
PROCESS_SECONDS = 60.0
PROJECTS = Path(__file__).parents[1] / "worker"
WATCH_SECONDS = 0.3
SLOW = {("prune",)}  # it waits 12 seconds for fresh counts, unless it is a dry run
AGES = ("90s", "30m", "2h", "7d", "2w", "0s", "9" * 30 + "d", "-1h", "1", "h")
RATES = ("1000/s", "6000/m", "0/s", "1/0", "/s", "nan/s", "inf/s", "1e9/s", "1000 / s", "9" * 400 + "/s")
SHARES = ("0%", "100%", "2%", "101%", "-1%", "nan%", "1e9%", "%")
WAITS = ("0", "0.1", "0.3", "nan", "inf", "-inf", "1e400", "-1", "x")
INTERVALS = ("0.1", "1", "nan", "inf", "-1", "0", "1e400", "1e18", "x")


def leaves(command, *path):
    if isinstance(command, click.Group):
        for name, each in command.commands.items():
            yield from leaves(each, *path, name)
        if command.invoke_without_command:
            yield path, command
    else:
        yield path, command


COMMANDS = dict(leaves(dlx))


class Drawer:
    """Makes words for a command out of what lies in the house."""

    def __init__(self, house, known, folder):
        self._house, self._known, self._folder = house, known, folder

    def words(self, it):
        path = it.choice(sorted(COMMANDS))
        words = [*path]
        for parameter in COMMANDS[path].params:
            words += self._parameter(it, parameter)
        if path in SLOW and "--dry-run" not in words:
            words.append("--dry-run")
        if "--canary" in words and "--canary-wait" not in words:
            words += ["--canary-wait", "0.1"]
        if it.is_one_in(25):
            words.insert(it.randrange(len(words) + 1), self._word(it))
        return words

    def _parameter(self, it, parameter):
        if isinstance(parameter, click.Argument):
            count = 1 if parameter.nargs == 1 else it.randrange(3)
            return [self._value(it, parameter) for _ in range(count)]
        if parameter.is_flag:
            often = 2 if parameter.name in {"yes", "everything", "as_json"} else 5
            return [it.choice(parameter.opts)] if it.is_one_in(often) else []
        often = 12 if parameter.name == "management_url" else 6
        return [it.choice(parameter.opts), self._value(it, parameter)] if it.is_one_in(often) else []

    def _value(self, it, parameter):
        if it.is_one_in(3):
            return self._word(it)
        name = parameter.name
        if isinstance(parameter.type, click.Choice):
            return it.choice(list(parameter.type.choices))
        if name in {"task_id", "task_ids"}:
            return it.choice(self._known)
        if name in {"queues", "queue", "to_queue", "queue_names"}:
            # Not a lane for --to-queue: there a message would wait, as it was asked to.
            return it.choice([*self._house.WORK, *self._house.dead, self._house.VICTIM, "fz.new", "fz.*"])
        special = {
            "older_than": AGES, "newer_than": AGES, "rate": RATES, "stop_on_fail": SHARES, "canary_wait": WAITS,
            "interval": INTERVALS, "changes": ("0=1", "value=2", "x=", "=", "value={", "9=1", "value=1e999"),
            "output": ("-", "out.jsonl", "no/such/folder"), "file": ("letters.jsonl", "-", ".", "none.jsonl"),
            "management_url": ("http://127.0.0.1:1", self._house.vhost.management_url),
        }  # fmt: skip
        if name in special:
            return it.choice(special[name])
        return str(values.number(it))

    @staticmethod
    def _word(it):
        """No NUL: the system does not let one into a command line."""
        return values.text(it).replace("\0", "")


def purged_of(words, done):
    if words[:2] != ["dead", "purge"]:
        return 0
    told = re.search(r"audit dead purge by=\S+ purged=(\d+)", done.stderr)
    return int(told[1]) if told else 0


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Files that a command makes are made here."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "letters.jsonl").write_text("")
    monkeypatch.setenv("EDITOR", "true")
    return tmp_path


def batches(inputs):
    while batch := list(islice(inputs, BATCH)):
        yield batch


def test_every_command_ends_and_every_message_is_in_one_place(fuzz, house, folder):
    for batch in batches(fuzz.inputs("commands")):
        house.empty()
        innocents = [bury(work) for work in house.WORK for bury in (house.bury, house.bury, house.park)]
        drawer = Drawer(house, innocents, folder)
        purged = 0
        for it in batch:
            words = drawer.words(it)
            answer = it.choice(["y\n", "y\n", "n\n", "", "\x1b\n"])
            it.note(f"celery dlx {words!r}, answer {answer!r}")
            with fuzz.judging(it):
                if words[:1] == ["watch"]:
                    with limited(WATCH_SECONDS, KeyboardInterrupt):
                        done = house.checked(*words, answer=answer)
                else:
                    done = house.checked(*words, answer=answer)
                purged += purged_of(words, done)
        with fuzz.judging(*batch):
            where = house.census()
            lost = [token for token in innocents if token not in where]
            doubled = {token: queues for token, queues in where.items() if len(queues) > 1}
            assert (len(lost), doubled) == (purged, {}), f"lost {lost}, {purged} purged, doubled {doubled}"
    fuzz.report()


def test_as_a_process_a_command_ends_as_well(fuzz, house, folder):
    """The first inputs again, by Celery's own command line."""
    house.empty()
    drawer = Drawer(house, [house.bury(work) for work in house.WORK], folder)
    environment = {**os.environ, "PYTHONPATH": str(PROJECTS), "PROJECT_CONF": json.dumps(house.conf)}
    environment |= {"DLX_MANAGEMENT_URL": house.vhost.management_url, "PYTHONWARNINGS": "ignore"}
    for it in islice(fuzz.inputs("commands"), PROCESSES):
        words = drawer.words(it)
        it.note(f"celery -A project dlx {words!r}")
        with fuzz.judging(it, seconds=PROCESS_SECONDS):
            if words[:1] != ["watch"]:  # it ends with Ctrl-C only
                done = subprocess.run(
                    [sys.executable, "-m", "celery", "-A", "project", "dlx", *words],
                    env=environment, input="y\n", capture_output=True, text=True, check=False,
                )  # fmt: skip
                assert done.returncode in {0, 1, 2}, done.stderr[-800:]
                assert "Traceback (most recent" not in done.stderr, done.stderr[-800:]
                check_text(done.stdout + done.stderr)
    fuzz.report()
