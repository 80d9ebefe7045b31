"""The pictures of the pages are drawn from their text, and nothing in them comes from another host."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path
from runpy import run_path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
TEXTS = sorted((DOCS / "pictures").glob("*.txt"))


def draw(text):
    return run_path(str(DOCS / "pictures.py"))["draw"](text)


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: text.stem)
def test_a_picture_is_what_its_text_says(text):
    drawn = draw(text.read_text())

    assert text.with_suffix(".svg").read_text() == drawn, "run python docs/pictures.py"


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: text.stem)
def test_every_box_and_every_text_is_inside_its_picture(text):
    root = ET.fromstring(text.with_suffix(".svg").read_text())  # noqa: S314 - our own
    width, height = float(root.get("width")), float(root.get("height"))

    for box in root.iter("{http://www.w3.org/2000/svg}rect"):
        left, top = float(box.get("x", 0)), float(box.get("y", 0))
        assert 0 <= left <= left + float(box.get("width")) <= width
        assert 0 <= top <= top + float(box.get("height")) <= height
    for words in root.iter("{http://www.w3.org/2000/svg}text"):
        half = len(words.text) * 6.5 / 2
        assert half <= float(words.get("x")) <= width - half, words.text


def test_every_picture_is_on_a_page_and_has_a_source():
    shown = {
        name
        for page in [DOCS.parent / "README.md", *DOCS.glob("*.md")]
        for name in re.findall(r"pictures/(\w+)\.svg", page.read_text())
    }

    drawn, recorded = {text.stem for text in TEXTS}, {"status", "groups", "top", "top_wide"}
    assert {picture.stem for picture in (DOCS / "pictures").glob("*.svg")} == shown == drawn | recorded


def test_no_picture_loads_anything():
    for picture in (DOCS / "pictures").glob("*.svg"):
        assert re.findall(r"https?://[^\"]+", picture.read_text()) == ["http://www.w3.org/2000/svg"]


def test_a_line_that_is_no_command_is_refused():
    with pytest.raises(ValueError, match="bxo"):
        draw("size 10 10\nbxo work queue")
