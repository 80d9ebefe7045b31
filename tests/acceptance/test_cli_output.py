"""Tables on a terminal: what somebody is to copy stays in one piece, however narrow it is."""

from __future__ import annotations

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
