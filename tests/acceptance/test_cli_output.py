"""What commands print: an id stays in one piece on a narrow terminal, and no letter steers the terminal."""

from __future__ import annotations

import json
import re

import pytest

from celery_dlx_retry.cli import output

ID = "6f44607b-fec2-4443-ba01-a6af7d4259e6"
COLUMNS = ("due", "task", "id", "queue", "retry", "waits", "last error")
ROW = ("2026-11-16 12:27:34", "shop.tasks.charge_the_card", ID, "orders", 2, "600 s", "ConnectionError: the bank " * 3)


@pytest.mark.parametrize("width", [40, 80, 105, 108, 112, 120, 200])
def test_an_id_is_never_broken_over_lines(monkeypatch, capsys, width):
    monkeypatch.setattr(output, "is_terminal", lambda: True)
    monkeypatch.setenv("COLUMNS", str(width))

    output.table(COLUMNS, [ROW, ROW], whole=("id",))

    shown = capsys.readouterr().out
    assert shown.count(ID) == 2
    words = re.sub(r"[^\w.]", "", shown)
    assert words.count("shop") == 2
    if width >= 120:
        assert max(map(len, shown.splitlines())) <= width
        assert "\N{BOX DRAWINGS LIGHT VERTICAL}" in shown
    if width <= 80:
        assert f"id          {ID}\n" in shown


def test_on_a_terminal_without_rich_the_columns_line_up_and_in_a_pipe_there_are_tabs(monkeypatch, capsys):
    monkeypatch.setattr(output, "is_terminal", lambda: False)
    monkeypatch.setenv("COLUMNS", "80")
    rows = [("work", "orders", 0), ("wait", "dlx.v2.wait.quorum.000000060000.orders", 12)]

    output.table(("role", "queue", "ready"), rows)
    piped = capsys.readouterr().out
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    output.table(("role", "queue", "ready"), rows)
    shown = capsys.readouterr().out

    assert piped.splitlines()[1] == "work\torders\t0"
    assert shown.splitlines() == [
        "role  queue                                   ready",
        "work  orders                                  0",
        "wait  dlx.v2.wait.quorum.000000060000.orders  12",
    ]


def test_on_a_terminal_without_rich_a_row_that_is_too_long_is_a_block_of_lines(monkeypatch, capsys):
    monkeypatch.setattr(output, "is_terminal", lambda: False)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "40")

    output.table(("role", "queue"), [("wait", "dlx.v2.wait.quorum.max1000.000000060000.orders")])

    assert capsys.readouterr().out == "role   wait\nqueue  dlx.v2.wait.quorum.max1000.000000060000.orders\n\n"


@pytest.mark.parametrize(
    ("delay_ms", "text"), [(0, "0"), (50, "0.05"), (1_000, "1"), (90_500, "90.5"), (26_843_545_600, "26843545.6")]
)
def test_a_time_has_no_exponent(delay_ms, text):
    assert output.seconds(delay_ms) == text


HOSTILE = "x\n\r\x1b[31m\x9b2J\u202e\u2028[red]"
SHOWN = r"x\n\r\x1b[31m\x9b2J\u202e\u2028[red]"


@pytest.fixture
def hostile_letter(desk):
    """All that a producer may choose is hostile in it."""
    desk.bury(
        HOSTILE,
        task=HOSTILE,
        worker=HOSTILE,
        error_type=HOSTILE,
        error=HOSTILE,
        queue=HOSTILE,
        traceback=f"File {HOSTILE}",
        args=[HOSTILE, "\ud800", float("nan")],
        kwargs={HOSTILE: float("inf")},
        headers={"argsrepr": HOSTILE, "stamped": [HOSTILE, "\ud800"], HOSTILE: HOSTILE},
    )
    desk.lying(1)
    return desk


READING = ["list", "groups", "show X", "show X --args", "replay X --dry-run", "export"]
CHANGING = [
    "replay X",
    "replay X --yes",
    "edit X --set 0=1 --no-check",
    "edit X --undo --yes",
    "purge X",
    "purge --all",
]


@pytest.mark.parametrize("words", [*READING, *CHANGING, "list --task X", "show X?", "replay X --to-queue X --yes"])
def test_no_letter_steers_the_terminal_or_adds_a_line(hostile_letter, words):
    arguments = [word.replace("X", HOSTILE) for word in words.split()]

    done = hostile_letter.run(*arguments, answer="n\n")

    lines = (done.stdout + done.stderr).splitlines()
    assert lines
    assert [line for line in lines if not line.replace("\t", "").isprintable()] == []


@pytest.mark.parametrize("words", ["list", "groups", "show X --args", "replay X --dry-run"])
def test_json_of_a_hostile_letter_is_strict_and_ascii(hostile_letter, words):
    arguments = [word.replace("X", HOSTILE) for word in words.split()]

    done = hostile_letter.run(*arguments, "--json")

    lines = done.stdout.split("\n")
    assert done.stdout.isascii()
    assert lines.pop() == ""
    assert all(json.loads(line, parse_constant=pytest.fail) for line in lines)


def test_an_escape_names_what_it_stands_for(hostile_letter):
    (shown,) = hostile_letter.json("show", HOSTILE, "--args")
    listed = hostile_letter.dlx("list").stdout

    assert shown["arguments"] == {
        "args": [HOSTILE, r"\ud800", {"$float": "nan"}],
        "kwargs": {HOSTILE: {"$float": "inf"}},
    }
    assert SHOWN in listed


def test_an_export_follows_no_link_and_overwrites_nothing(desk, tmp_path):
    target, link = tmp_path / "target", tmp_path / "link"
    desk.bury("x")
    desk.lying(1)

    link.symlink_to(target)
    dangling = desk.dlx("export", "-o", str(link), code=2)
    target.write_text("precious")
    pointing = desk.dlx("export", "-o", str(link), code=2)

    assert "exists; give another one" in dangling.stderr
    assert "exists; give another one" in pointing.stderr
    assert target.read_text() == "precious"
