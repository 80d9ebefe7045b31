"""The section of docs/compatibility.md about other projects' test suites."""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery_suite.differences import DIFFERENCES
from celery_suite.suites import SUITES, WITHOUT_TESTS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime
    from pathlib import Path

    from celery_suite.compare import Comparison, Difference

TITLE = "## Celery's own tests\n"
NEXT = "\n## "

HEAD = """
`make celery-suite` runs the tests of Celery and of packages for Celery twice.
The first run is with plain Celery; in the second one `task_cls` is `DLXRetryTask` in every app that names no class.
The tests come from the source distributions and are not changed; no test is run a second time when it fails.
The job compares both runs by test id.
It fails if a test passes with plain Celery, does not pass with ours, and is not in the list below.
It also fails if a test in the list no longer differs.
Tests that fail with plain Celery are not compared.
Commands that a test starts as separate processes run with plain Celery on both sides.

"""
COLUMNS = """\
| suite | version | what runs | tests | pass with plain Celery | pass with ours | differ |
|---|---|---|---|---|---|---|
"""
NO_TESTS = """
These packages have no tests in their source distributions, so the job cannot run them: {packages}.
"""
LIST_HEAD = """
### Tests that differ, and why

"""
LIST_COLUMNS = "| suite | tests | why |\n|---|---|---|\n"
NONE = "No test differs.\n"


def write(page: Path, results: Sequence[Comparison], *, versions: Mapping[str, str], began: datetime) -> None:
    """Replace the section."""
    text = page.read_text()
    page.write_text(text.replace(section_of(text), section(results, versions=versions, began=began)))


def section_of(text: str) -> str:
    """The section as it is on the page, with its title."""
    rest = text.partition(TITLE)[2]
    return f"{TITLE}{rest.partition(NEXT)[0]}\n" if rest else ""


def section(results: Sequence[Comparison], *, versions: Mapping[str, str], began: datetime) -> str:
    suites = {suite.name: suite for suite in SUITES}
    rows = [
        f"| {it.suite} | {versions[suites[it.suite].package]} | {suites[it.suite].is_about} "
        f"| {len(it.baseline.outcomes):,} "
        f"| {len(it.baseline.passed):,} | {len(it.ours.passed):,} | {len(it.differing)} |\n"
        for it in results
    ]
    ran = f"\nThe last run was on {began:%Y-%m-%d}, with Celery {versions['celery']}.\n"
    return "".join([TITLE, HEAD, COLUMNS, *rows, ran, without_tests(), list_of(DIFFERENCES)])


def without_tests() -> str:
    return NO_TESTS.format(packages=", ".join(f"{name} {it}" for name, it in WITHOUT_TESTS.items()))


def list_of(differences: Iterable[Difference]) -> str:
    rows = [f"| {it.suite} | {'<br>'.join(f'`{test}`' for test in it.tests)} | {it.reason} |\n" for it in differences]
    return "".join([LIST_HEAD, LIST_COLUMNS, *rows]) if rows else f"{LIST_HEAD}{NONE}"
