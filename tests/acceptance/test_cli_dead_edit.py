"""``celery dlx dead edit``: other arguments for a dead letter, and the first ones back."""

from __future__ import annotations

import json
import os
import signal
import sys

import pytest
from support import eventually


def body(message):
    return json.loads(message.body)[:2]


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_arguments_are_set_by_name_and_the_original_comes_back(desk, kind):
    desk.bury("x", kind, task="project.heal", args=[3], kwargs={"countdown": 1}, reason="exhausted", attempts=4)
    desk.lying(1)
    (before,) = desk.letters(kind)

    edited = desk.shell("edit", "x", "--set", "failures=0", "--set", 'result="well"', "--yes")
    desk.lying(1)
    (changed,) = desk.letters(kind)
    (shown,) = desk.json("show", "x", "--args")
    undone = desk.dlx("edit", "x", "--undo", "--yes")
    desk.lying(1)
    (after,) = desk.letters(kind)

    assert edited.stdout == "edited x\n"
    assert "audit dead edit by=" in edited.stderr
    assert body(changed.message) == [[0], {"countdown": 1, "result": "well"}]
    assert changed.record == before.record
    assert changed.message.headers["argsrepr"] == "[0]"
    assert (shown["edited"], shown["arguments"]["args"]) == (True, [0])
    assert undone.stdout == "restored x\n"
    assert after.message.body == before.message.body
    assert after.message.headers == before.message.headers


def test_a_compressed_letter_is_edited_and_stays_compressed(desk):
    desk.bury("x", task="project.fail", args=["a" * 50], compression="gzip")
    desk.lying(1)

    desk.dlx("edit", "x", "--set", '0="b"', "--yes")
    desk.lying(1)

    (shown,) = desk.json("show", "x", "--args")
    assert shown["arguments"]["args"] == ["b"]
    assert shown["headers"]["compression"] == "application/x-gzip"


def test_an_editor_writes_the_arguments_and_holds_nothing_meanwhile(desk, tmp_path):
    editor = tmp_path / "editor.py"
    editor.write_text(
        "import json, pathlib, sys\n"
        "file = pathlib.Path(sys.argv[-1])\n"
        "found = json.loads(file.read_text())\n"
        "found['kwargs']['value'] = 'from the editor'\n"
        "file.write_text(json.dumps(found))\n"
    )
    desk.bury("x", kwargs={"value": "old"})
    desk.lying(1)

    edited = desk.dlx("edit", "x", answer="y\n", EDITOR=f"{sys.executable} {editor}", VISUAL="")
    desk.lying(1)

    (letter,) = desk.letters("classic")
    assert edited.stdout.endswith("edited x\n")
    assert body(letter.message) == [[], {"value": "from the editor"}]


WAITING_EDITOR = """
import os, pathlib, sys, time
file, told = pathlib.Path(sys.argv[-1]), pathlib.Path(sys.argv[1])
file.with_name(file.name + "~").write_text(file.read_text())  # as editors do
modes = [oct(path.stat().st_mode & 0o777) for path in (file, file.parent)]
told.with_suffix(".new").write_text(f"{os.getpid()} {' '.join(modes)} {file}")
told.with_suffix(".new").rename(told)
time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_no_arguments_stay_on_the_disk_when_the_command_is_ended_at_its_editor(desk, tmp_path, number, request):
    editor, told, folder = tmp_path / "editor.py", tmp_path / "told", tmp_path / "temporary"
    editor.write_text(WAITING_EDITOR)
    folder.mkdir()
    desk.bury("x", kwargs={"value": "a secret"})
    desk.lying(1)
    # Under nohup this process ignores SIGHUP, and so would the command.
    before = signal.signal(number, signal.SIG_DFL)
    request.addfinalizer(lambda: signal.signal(number, before))

    with desk.popen("edit", "x", EDITOR=f"{sys.executable} {editor} {told}", VISUAL="", TMPDIR=str(folder)) as process:
        pid, of_file, of_folder, file = eventually(lambda: told.exists() and told.read_text().split())
        process.send_signal(number)
        code, left = process.wait(timeout=20), [*folder.iterdir()]
        os.kill(int(pid), signal.SIGKILL)

    assert code == 128 + number
    assert left == []
    assert file.startswith(str(folder))
    assert (of_file, of_folder) == ("0o600", "0o700")


def test_an_edit_that_changes_nothing_is_json_if_asked_for(desk):
    desk.bury("x", args=[1])
    desk.lying(1)

    told = desk.json("edit", "x", "--set", "0=1")

    assert told == [{"task_id": "x", "queue": desk.dead_queue("classic"), "edited": 0}]


def test_arguments_that_cannot_be_printed_come_back_from_the_editor_as_they_were(desk):
    desk.bury("x", kwargs={"value": "größe \x9b\u202e\u2028\ud800"})
    desk.lying(1)

    saved, failed, no_command = (
        desk.run("edit", "x", EDITOR=editor, VISUAL="") for editor in ("true", "false", "'no command")
    )

    assert saved.stdout == "Nothing was changed.\n"
    assert "Editing failed" in failed.stderr
    assert (
        "The editor cannot be started: EDITOR or VISUAL is not a command (No closing quotation)." in no_command.stderr
    )


def test_what_the_task_would_not_take_and_what_is_no_json_stays_as_it_is(desk):
    desk.bury("x")
    desk.bury("pickled", serializer="pickle")
    desk.lying(2)

    misfit = desk.dlx("edit", "x", "--set", "colour=1", "--yes", code=1)
    no_json = desk.dlx("edit", "x", "--set", "value=red", "--yes", code=2)
    pickled = desk.dlx("edit", "pickled", "--set", "value=1", "--yes", code=1)
    never = desk.dlx("edit", "x", "--undo", "--yes", code=1)

    assert (
        "'project.succeed' does not take these arguments: got an unexpected keyword argument 'colour'" in misfit.stderr
    )
    assert "there must be JSON" in no_json.stderr
    assert "its body is application/x-python-serialize, not JSON" in pickled.stderr
    assert "it was never edited" in never.stderr
    assert {letter.message.body for letter in desk.letters("classic") if letter.record.task_id == "x"} == {
        b'[[], {}, {"callbacks": null, "errbacks": null, "chain": null, "chord": null}]'
    }
