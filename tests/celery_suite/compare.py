"""Compare two runs of one test suite by test id: plain Celery, and ours."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

PASSED = "passed"


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Tests that pass with plain Celery and not with ours, and why that is right.

    A test is an id as pytest prints it. Without its parameters it means the test with each of them.
    """

    suite: str
    tests: tuple[str, ...]
    reason: str


@dataclass(frozen=True, kw_only=True)
class Run:
    """One side: the outcome of each test, and how many of the suite's tasks were ours."""

    outcomes: Mapping[str, str]
    tasks: int
    ours: int
    is_complete: bool
    texts: Mapping[str, str]

    @property
    def passed(self) -> set[str]:
        return {test for test, outcome in self.outcomes.items() if outcome == PASSED}

    @property
    def failed(self) -> set[str]:
        return {test for test, outcome in self.outcomes.items() if outcome == "failed"}


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What differs between both sides of one suite, and what is wrong with that."""

    suite: str
    baseline: Run
    ours: Run
    documented: tuple[str, ...]

    @property
    def differing(self) -> list[str]:
        return sorted(self.baseline.passed - self.ours.passed)

    @property
    def undocumented(self) -> list[str]:
        return [test for test in self.differing if not any(covers(entry, test) for entry in self.documented)]

    @property
    def stale(self) -> list[str]:
        """Documented tests that do not differ: each of them must pass with plain Celery and not with ours."""
        differing = set(self.differing)
        known = {entry: {test for test in self.baseline.passed if covers(entry, test)} for entry in self.documented}
        return [entry for entry, tests in known.items() if not tests or tests - differing]

    def problems(self) -> Iterator[str]:
        """Sentences; none if the suite is as documented."""
        for side, run in (("plain Celery", self.baseline), ("ours", self.ours)):
            if not run.is_complete:
                yield f"{self.suite}: the run with {side} did not reach its end"
        if self.baseline.ours:
            yield f"{self.suite}: {self.baseline.ours} tasks of the run with plain Celery were ours"
        if self.ours.tasks and not self.ours.ours:
            yield f"{self.suite}: no task of the run with ours was ours"
        for test in self.undocumented:
            outcome = self.ours.outcomes.get(test, "missing")
            yield f"{self.suite}: {test} passes with plain Celery and is {outcome} with ours"
        for test in self.stale:
            yield f"{self.suite}: {test} is documented as different and is not: remove it from differences.py"


def compare(suite: str, *, baseline: Run, ours: Run, documented: Iterable[Difference]) -> Comparison:
    tests = tuple(test for entry in documented if entry.suite == suite for test in entry.tests)
    return Comparison(suite=suite, baseline=baseline, ours=ours, documented=tests)


def covers(entry: str, test: str) -> bool:
    return test == entry or test.startswith(f"{entry}[")


def read(record: Path) -> Run:
    """What suite_plugin wrote; the last line is there only if pytest reached its end."""
    lines = [json.loads(line) for line in record.read_text().splitlines()] if record.exists() else []
    tests = [line for line in lines if "id" in line]
    counts = next((line for line in lines if "id" not in line), None)
    return Run(
        outcomes={line["id"]: line["outcome"] for line in tests},
        texts={line["id"]: line["text"] for line in tests if line["text"]},
        tasks=counts["tasks"] if counts else 0,
        ours=counts["ours"] if counts else 0,
        is_complete=counts is not None,
    )
