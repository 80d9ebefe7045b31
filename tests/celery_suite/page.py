"""The section of docs/compatibility.md about other projects' test suites."""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery_suite.differences import DIFFERENCES
from celery_suite.suites import SUITES, WITHOUT_TESTS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import datetime
    from pathlib import Path

    from celery_suite.compare import Comparison, Difference

TITLE = "## Celery's own tests\n"
NEXT = "\n\n## "

HEAD = """
`make celery-suite` runs the tests of Celery and of packages for Celery twice.
The first run is with plain Celery; in the second run `task_cls` is `DLXRetryTask` in every app that names no class.
The tests come unchanged from the source distributions; no test runs a second time when it fails.
The job compares both runs by test id.
It fails if a test passes with plain Celery, does not pass with ours, and is not in the list below.
It also fails if a test in the list no longer differs.
Tests that fail with plain Celery are not compared.
Commands that a test starts as separate processes run with plain Celery on both sides.

"""
COLUMNS = """\
| suite | version | what runs | tests | pass with plain Celery | pass with ours | differ | unlisted | from | commit |
|---|---|---|---|---|---|---|---|---|---|
"""
NOT_RUN = "| {suite} | | {is_about} | not run | | | | | | |\n"
NO_TESTS = """
These packages have no tests in their source distributions, so the job cannot run them: {packages}.
"""
LIST_HEAD = """
### Tests that differ, and why

"""
LIST_COLUMNS = "| suite | tests | why |\n|---|---|---|\n"
NONE = "No test differs.\n"


def write(page: Path, rows: Mapping[str, str]) -> None:
    """Replace the section, with these rows by the names of their suites; the other rows stay."""
    text = page.read_text()
    old = section_of(text)
    page.write_text(text.replace(old, section({**rows_of(old), **rows})))


def section_of(text: str) -> str:
    """The section as it is on the page, with its title."""
    rest = text.partition(TITLE)[2]
    return f"{TITLE}{rest.partition(NEXT)[0]}\n" if rest else ""


def section(rows: Mapping[str, str]) -> str:
    table = (rows.get(it.name) or NOT_RUN.format(suite=it.name, is_about=it.is_about) for it in SUITES)
    return "".join([TITLE, HEAD, COLUMNS, *table, without_tests(), list_of(DIFFERENCES)])


def rows_of(section: str) -> dict[str, str]:
    lines = section.partition(COLUMNS)[2].partition("\n\n")[0].splitlines()
    return {line.split("|")[1].strip(): f"{line}\n" for line in lines}


def row(it: Comparison, *, version: str, began: datetime, commit: str) -> str:
    (suite,) = (suite for suite in SUITES if suite.name == it.suite)
    return (
        f"| {suite.name} | {version} | {suite.is_about} | {len(it.baseline.outcomes):,} "
        f"| {len(it.baseline.passed):,} | {len(it.ours.passed):,} | {len(it.differing)} | {len(it.undocumented)} "
        f"| {began:%Y-%m-%d} | {commit} |\n"
    )


def without_tests() -> str:
    return NO_TESTS.format(packages=", ".join(f"{name} {it}" for name, it in WITHOUT_TESTS.items()))


def list_of(differences: Iterable[Difference]) -> str:
    rows = [f"| {it.suite} | {'<br>'.join(f'`{test}`' for test in it.tests)} | {it.reason} |\n" for it in differences]
    return "".join([LIST_HEAD, LIST_COLUMNS, *rows]) if rows else f"{LIST_HEAD}{NONE}"
