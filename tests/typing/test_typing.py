"""The types that we ship, from outside: mypy --strict on a user's files, with none of our own configuration."""

import re
import runpy
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

import celery_dlx_retry

HERE = Path(__file__).parent
SHOP, MISTAKES = HERE / "shop.py", HERE / "mistakes.py"
ERROR = re.compile(r"(?P<file>.+):(?P<line>\d+): error: .*  \[(?P<code>[\w-]+)\]")


@pytest.fixture(scope="module")
def checked(tmp_path_factory):
    """Error codes by file and line."""
    elsewhere = tmp_path_factory.mktemp("user")
    run = subprocess.run(
        [
            *(sys.executable, "-m", "mypy", "--strict", "--no-pretty", "--no-error-summary", "--hide-error-context"),
            # Celery ships no types, so its decorator has none.
            *("--ignore-missing-imports", "--allow-untyped-decorators"),
            *("--config-file", "", "--cache-dir", str(elsewhere)),
            *(str(SHOP), str(MISTAKES)),
        ],
        cwd=elsewhere,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode in {0, 1}, run.stderr
    found = defaultdict(lambda: defaultdict(set))
    for line in run.stdout.splitlines():
        if match := ERROR.fullmatch(line):
            found[Path(match["file"]).name][int(match["line"])].add(match["code"])
        else:
            assert ": note: " in line, line
    return found


def test_what_a_user_writes_is_fine_in_strict_mode(checked):
    assert checked["shop.py"] == {}


def test_what_a_user_gets_wrong_is_found_line_by_line(checked):
    expected = {
        number: set(comment.split(", "))
        for number, line in enumerate(MISTAKES.read_text(encoding="utf-8").splitlines(), start=1)
        if (comment := line.partition("# error: ")[2])
    }

    assert checked["mistakes.py"] == expected


def test_what_a_user_writes_runs_too():
    app = runpy.run_path(str(SHOP))["app"]

    app.finalize()

    # Not those that other tests of this process have shared with every app.
    names = [name for name in app.tasks if name.startswith("<run_path>.")]
    assert len(names) == 5
    app.close()


def test_the_package_says_that_it_is_typed():
    assert (Path(celery_dlx_retry.__file__).parent / "py.typed").is_file()
