"""The session on docs/dead-letters.md is what a terminal shows, and the fields of ``--json`` are those on the page."""

from __future__ import annotations

import re
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "dead-letters.md").read_text()


def transcript():
    spec = spec_from_file_location("transcript", DOCS / "transcript.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def shape(session, name):
    """What is the same in every run, with every Celery and every Python."""
    session = session.replace(name, "shop")
    for pattern, word in (
        (r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", "<id>"),
        (r"\b(?=[0-9a-f]*\d)[0-9a-f]{8}\b", "<group>"),
        (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", "<time>"),
        (r"line \d+", "line <n>"),
        (r"[━─]+", "━"),
        (r" +(?=[┃│])", " "),  # the other name is longer
        (r" {2,}", "  "),
    ):
        session = re.sub(pattern, word, session)
    skipped = re.compile(r'^  \w+: |^\s*\^+$|^\s+File "celery_dlx|^\s+return |^  body ')
    return [line for line in session.splitlines() if not skipped.match(line)]


@pytest.mark.usefixtures("http_api")
def test_the_session_is_what_a_terminal_shows(broker, prefix, tmp_path):
    module = transcript()
    (promised,) = [found[2] for found in module.SESSION.finditer(PAGE)]

    session = module.made(url=broker.url, management_url=broker.management_url, folder=tmp_path, name=prefix)

    assert shape(session, prefix) == shape(promised, "shop")


def described(heading):
    """The fields of the table under a heading."""
    section = PAGE.partition(f"\n### {heading}\n")[2].partition("\n#")[0]
    rows = re.findall(r"^\| (`[^|]*`) \|", section, re.MULTILINE)
    return {field for row in rows for field in re.findall(r"`(\w+)`", row)}


def test_the_fields_of_json_are_those_on_the_page(desk):
    desk.bury("x")
    desk.lying(1)

    (listed,) = desk.json("list")
    (shown,) = desk.json("show", "x", "--args")
    (group,) = desk.json("groups")
    planned = desk.json("replay", "x", "--dry-run")
    moved = desk.json("replay", "x", "--yes")

    assert set(listed) == described("dead list")
    assert set(shown) - set(listed) == described("dead show")
    assert set(group) == described("dead groups")
    found = {field for row in (*planned, *moved) for field in row}
    assert found - {"would_replay", "would_keep"} == described("dead replay") - {"problem", "outcomes"}
    for failure in listed["history"]:
        assert set(failure) == {"attempt", "at_ms", "error", "delay_ms", "worker", "rule", "rule_retry"}
