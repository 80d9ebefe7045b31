"""The comparing part of ``make celery-suite``, and its section of the page."""

from __future__ import annotations

import json
import re
from datetime import datetime, timezone
from pathlib import Path

import pytest
from celery_suite import page
from celery_suite.compare import Difference, Run, compare, covers, read
from celery_suite.differences import DIFFERENCES
from celery_suite.suites import SUITES, WITHOUT_TESTS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/compatibility.md").read_text()
REQUIREMENTS = (ROOT / "tests/celery_suite/requirements.txt").read_text()


def run(*, ours=0, is_complete=True, **outcomes):
    return Run(outcomes=outcomes, texts={}, tasks=1, ours=ours, is_complete=is_complete)


def difference(*tests, suite="unit"):
    return Difference(suite=suite, tests=tests, reason="It is right.")


def problems(baseline, ours, *documented):
    return list(compare("unit", baseline=baseline, ours=ours, documented=documented).problems())


def test_a_test_that_passes_on_both_sides_is_no_problem():
    assert problems(run(a="passed"), run(a="passed", ours=1)) == []


@pytest.mark.parametrize("outcome", ["failed", "skipped", "xfailed"])
def test_a_test_that_passes_with_plain_celery_only_is_a_problem_that_names_it(outcome):
    assert problems(run(a="passed", b="passed"), run(a=outcome, b="passed", ours=1)) == [
        f"unit: a passes with plain Celery and is {outcome} with ours"
    ]


def test_a_test_that_is_gone_with_ours_is_a_problem():
    assert problems(run(a="passed"), run(ours=1)) == ["unit: a passes with plain Celery and is missing with ours"]


@pytest.mark.parametrize("outcome", ["failed", "skipped", "xfailed"])
def test_a_test_that_does_not_pass_with_plain_celery_is_not_compared(outcome):
    assert problems(run(a=outcome), run(a="failed", ours=1)) == []


def test_a_documented_difference_is_no_problem():
    assert problems(run(a="passed"), run(a="failed", ours=1), difference("a")) == []


def test_a_difference_that_is_documented_for_another_suite_is_a_problem():
    assert len(problems(run(a="passed"), run(a="failed", ours=1), difference("a", suite="integration"))) == 1


@pytest.mark.parametrize("sides", [("passed", "passed"), ("failed", "failed"), ("failed", "passed")])
def test_a_documented_difference_that_no_longer_differs_is_a_problem(sides):
    baseline, ours = sides

    assert problems(run(a=baseline), run(a=ours, ours=1), difference("a")) == [
        "unit: a is documented as different and is not: remove it from differences.py"
    ]


def test_a_documented_test_without_parameters_means_each_of_them():
    baseline = run(**{"a[1]": "passed", "a[2]": "passed", "ab": "passed"})

    assert (
        problems(baseline, run(**{"a[1]": "failed", "a[2]": "failed", "ab": "passed"}, ours=1), difference("a")) == []
    )
    assert (
        len(problems(baseline, run(**{"a[1]": "failed", "a[2]": "passed", "ab": "passed"}, ours=1), difference("a")))
        == 1
    )
    assert not covers("a", "ab")


def test_a_side_that_did_not_reach_its_end_is_a_problem():
    assert problems(run(is_complete=False), run(ours=1)) == ["unit: the run with plain Celery did not reach its end"]


def test_a_run_in_which_no_task_is_ours_compares_nothing_and_is_a_problem():
    assert problems(run(), run()) == ["unit: no task of the run with ours was ours"]
    assert problems(run(ours=2), run(ours=1)) == ["unit: 2 tasks of the run with plain Celery were ours"]


def test_the_worst_of_set_up_call_and_tear_down_is_the_last_line_and_counts(tmp_path):
    lines = [
        {"id": "a", "outcome": "passed", "seconds": 1, "text": ""},
        {"id": "a", "outcome": "failed", "seconds": 1, "text": "teardown"},
        {"tasks": 3, "ours": 2},
    ]
    (tmp_path / "record").write_text("".join(f"{json.dumps(line)}\n" for line in lines))

    it = read(tmp_path / "record")

    assert (it.outcomes, it.texts, it.tasks, it.ours, it.is_complete) == (
        {"a": "failed"},
        {"a": "teardown"},
        3,
        2,
        True,
    )
    assert not read(tmp_path / "none").is_complete


def test_every_documented_difference_is_of_a_suite_has_tests_once_and_a_reason():
    names = [(entry.suite, test) for entry in DIFFERENCES for test in entry.tests]

    assert {entry.suite for entry in DIFFERENCES} <= {suite.name for suite in SUITES}
    assert len(names) == len(set(names))
    assert all(entry.tests and re.fullmatch(r"[A-Z`][^|\n]+\.", entry.reason) for entry in DIFFERENCES)


def test_the_page_has_the_documented_differences_and_a_row_for_every_suite():
    section = page.section_of(PAGE)

    assert section == page.section(page.rows_of(section))
    assert list(page.rows_of(section)) == [suite.name for suite in SUITES]


def test_a_run_replaces_its_row_and_nothing_else(tmp_path):
    copy = tmp_path / "page.md"
    copy.write_text(PAGE)
    result = compare("unit", baseline=run(a="passed", b="failed"), ours=run(a="failed", ours=1), documented=())

    began = datetime(2026, 1, 2, tzinfo=timezone.utc)
    page.write(copy, {"unit": page.row(result, version="5.99", began=began, commit="abc")})

    (changed,) = set(copy.read_text().splitlines()) - set(PAGE.splitlines())
    assert len(copy.read_text().splitlines()) == len(PAGE.splitlines())
    assert changed.startswith("| unit | 5.99 | ")
    assert changed.endswith(" | 2 | 1 | 0 | 1 | 1 | 2026-01-02 | abc |")


def test_the_packages_that_run_are_pinned_and_the_others_are_not_installed():
    packages = {suite.package for suite in SUITES} - {"celery"}

    assert packages == set(re.findall(r"^([\w-]+)==", REQUIREMENTS, flags=re.MULTILINE))
    assert not packages & set(WITHOUT_TESTS)
