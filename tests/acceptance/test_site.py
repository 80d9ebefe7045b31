"""The pages as a site: built without a warning, whole, and without anything from a network."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [page.stem for page in (ROOT / "docs").glob("*.md")]
BROKEN = ["gone.md", "settings.md#gone", "../tests/gone.py"]


def build(root, into):
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "-f", root / "docs/site/mkdocs.yml", "--strict", "-d", into],
        capture_output=True, text=True, check=False, timeout=120, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    done = build(ROOT, folder)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return folder


def test_every_page_is_on_the_site_and_in_its_navigation(site):
    navigation = (site / "index.html").read_text().partition("<article")[0]

    pages = {page.stem for page in site.glob("*.html")} - {"404", "search"}
    assert pages == {"index", "changelog", "contributing", "reporting-vulnerabilities", *PAGES}
    assert pages - {"index"} <= set(re.findall(r'href="(?:\./)?([\w-]+)\.html"', navigation))


def test_no_markup_is_left_on_a_page(site):
    """GitHub reads some Markdown that MkDocs does not: a list without a blank line before it, a block in a list."""
    left = re.compile(r"^ *(?:[-*]|&gt;|(?:<p>)?\d+\.) .*|.*(?:\*\*|\]\(|```).*", re.MULTILINE)

    for page in site.glob("*.html"):
        text = page.read_text().partition("<article")[2].partition("</article>")[0]
        assert text or page.stem == "404"
        assert left.findall(re.sub(r"<(pre|code)\b.*?</\1>", "", text, flags=re.DOTALL)) == [], page.name


def test_no_page_fetches_anything_from_elsewhere(site):
    fetched = re.compile(r'<(?:script|img|iframe|link)\b[^>]*\b(?:src|href)="(?:https?:)?//[^"]*"')

    assert {page.name: found for page in site.glob("*.html") if (found := fetched.findall(page.read_text()))} == {}
    loaded = re.compile(r"(?:url\(|@import|(?:href|src)=)\s*[\"']?https?://")
    for kind in ("*.css", "*.svg"):
        assert [file.name for file in site.rglob(kind) if loaded.search(file.read_text())] == []


def test_a_link_of_the_readme_to_the_repository_stays_on_the_site(site):
    front = (site / "index.html").read_text().partition("<article")[2].partition("</article>")[0]

    assert 'src="pictures/message.svg"' in front
    assert 'href="guarantees.html#how-you-can-still-lose-a-task"' in front
    assert "github.com" not in front


def test_every_cell_of_a_wide_table_has_the_name_of_its_column_for_phones(site):
    page = (site / "what-happens-when.html").read_text()

    assert page.count('<div class="table columns-4">') == page.count("<table>") > 0
    assert '<td data-column="Celery alone">' in page
    assert "<td>" not in page


def test_code_can_be_copied_and_the_site_has_a_search_and_a_dark_mode(site):
    page = (site / "settings.html").read_text()

    assert '"content.code.copy"' in page
    assert 'data-md-color-scheme="slate"' in page
    assert "settings.html" in (site / "search" / "search_index.json").read_text()


def test_what_pages_link_to_outside_of_docs_is_there_as_text(site):
    linked = set(re.findall(r'href="(source/[^"]+)"', "".join(page.read_text() for page in site.glob("*.html"))))

    assert "source/tests/worker/test_retry.py.txt" in linked
    for target in linked:
        original = ROOT / target.removeprefix("source/").removesuffix(".txt")
        assert (site / target).read_bytes() == original.read_bytes()


def test_a_broken_link_and_a_page_without_a_link_in_the_contents_fail_the_build(tmp_path):
    root = tmp_path / "repository"
    shutil.copytree(ROOT / "docs", root / "docs")
    for name in (
        *("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "LICENSE", "pyproject.toml"),
        *("tests", "example_project"),
    ):
        (root / name).symlink_to(ROOT / name)
    with (root / "docs" / "glossary.md").open("a") as page:
        page.writelines(f"[gone]({link})\n" for link in BROKEN)
    (root / "docs" / "unlisted.md").write_text("# Unlisted\n")

    done = build(root, tmp_path / "site")

    assert done.returncode == 1
    complaints = [line for line in done.stderr.splitlines() if line.startswith("WARNING")]
    for link in BROKEN:
        assert any("'glossary.md'" in line and f"'{link}'" in line for line in complaints), complaints
    assert "unlisted.md" in done.stderr
