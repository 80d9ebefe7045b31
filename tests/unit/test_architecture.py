"""docs/architecture.md names files and folders that exist, and one file for each change."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "celery_dlx_retry"
PAGE = (ROOT / "docs" / "architecture.md").read_text()
PICTURE = (ROOT / "docs" / "pictures" / "failing_task.txt").read_text()


def rows(heading):
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return [line for line in section.splitlines() if re.match(r"\| (?!---|folder|change)", line)]


def test_every_file_on_the_page_and_in_its_picture_exists():
    named = set(re.findall(r"`([\w/]+\.py)`", PAGE)) | set(re.findall(r"\b(\w+/\w+\.py)\b", PICTURE))

    assert len(named) >= 15
    assert [name for name in sorted(named) if not (PACKAGE / name).is_file()] == []


def test_at_least_15_changes_name_one_file_each():
    changes = rows("Where do I change…")

    assert len(changes) >= 15
    for row in changes:
        assert len(re.findall(r"`[\w/]+\.py` \|$", row)) == 1, row


def test_the_map_has_every_folder_of_the_package():
    mapped = {re.match(r"\| `([\w.]+)/?`", row)[1] for row in rows("The map")}
    folders = {found.parent.name for found in PACKAGE.glob("*/__init__.py")}

    assert mapped == folders | {"events.py", "settings.py"}


def test_the_map_has_the_order_of_the_layers():
    from tests.unit.test_layers import LAYERS  # noqa: PLC0415 - its list is the order

    order = [re.match(r"\| `(\w+)", row)[1] for row in rows("The map")]
    layers = [layer for layer in LAYERS if layer in order]

    assert [layer for layer in order if layer in layers] == layers


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`(tests/\w+)`", PAGE))))
def test_every_folder_of_tests_exists(name):
    assert (ROOT / name).is_dir()
