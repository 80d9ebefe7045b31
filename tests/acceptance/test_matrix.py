"""What we say that we support is what the matrix has run, all of it; an end that is not there is said, in one line."""

from __future__ import annotations

import re
import shutil
from itertools import dropwhile, takewhile
from pathlib import Path

import matrix
import matrix_page
import pytest
import rabbits

from celery_dlx_retry.topology.broker_requirements import OLDEST_VERSION

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/compatibility.md").read_text()
README = (ROOT / "README.md").read_text()
PYPROJECT = (ROOT / "pyproject.toml").read_text()
TOX = (ROOT / "tox.ini").read_text()
PYTHONS = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', PYPROJECT)
CELERYS = re.findall(r"celery==([\d.]+)\.\*", TOX)
SLEEP = shutil.which("sleep")
DIAGONAL = [name for name in matrix_page.environments(ROOT / "tox.ini") if not name.startswith("smoke-")]


def rows(heading):
    """The first table under a heading, as dicts."""
    lines = PAGE.partition(f"## {heading}\n")[2].splitlines()
    table = takewhile(is_row, dropwhile(lambda line: not is_row(line), lines))
    head, _, *body = [[cell.strip() for cell in line.strip("|").split("|")] for line in table]
    return [dict(zip(head, row, strict=True)) for row in body]


def is_row(line):
    return line.startswith("|")


def is_of(exact, version):
    return f"{exact}.".startswith(f"{version}.")


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("celery", CELERYS)
def test_every_combination_was_run_with_every_pool_and_every_claim_held(python, celery):
    (row,) = [row for row in rows("Every combination") if is_of(row["Python"], python) and is_of(row["Celery"], celery)]

    for version in rabbits.VERSIONS:
        for pool in matrix_page.POOLS:
            (claims,) = [
                held for name, held in row.items() if name.endswith(f" {pool}") and is_of(name.split()[0], version)
            ]
            assert int(claims) >= 6


def test_the_diagonal_has_every_version_and_was_run():
    parts = {part for name in DIAGONAL for part in name.split("-")}
    wanted = {"py": PYTHONS, "celery": CELERYS, "rabbit": rabbits.VERSIONS}

    assert parts == {f"{kind}{version.replace('.', '')}" for kind, versions in wanted.items() for version in versions}
    ran = {row["environment"].strip("`"): row for row in rows("The diagonal")}
    assert set(ran) == set(DIAGONAL)
    assert {(row["failed"], row["skipped"]) for row in ran.values()} == {("0", "0")}


def test_the_page_has_the_differences_of_the_code():
    assert PAGE.endswith("".join(matrix_page._differences()))


def test_the_ends_are_the_first_and_the_last_of_what_we_support():
    oldest, newest = matrix.ENDS

    assert (oldest.python, oldest.celery, oldest.rabbitmq) == (PYTHONS[0], CELERYS[0], rabbits.VERSIONS[0])
    assert (newest.python, newest.celery, newest.rabbitmq) == (PYTHONS[-1], CELERYS[-1], rabbits.VERSIONS[-1])
    assert list(matrix.PYTHONS) == PYTHONS


def test_readme_and_package_ask_for_the_oldest_of_each_and_no_newer_celery():
    oldest = matrix.ENDS[0]

    assert f'requires-python = ">={oldest.python}"' in PYPROJECT
    major, minor = map(int, CELERYS[-1].split("."))
    assert f'"celery>={oldest.celery},<{major}.{minor + 1}"' in PYPROJECT
    assert ".".join(map(str, OLDEST_VERSION)) == oldest.rabbitmq
    for what, versions in {"Python": PYTHONS, "Celery": CELERYS, "RabbitMQ": rabbits.VERSIONS}.items():
        assert f"{what} {versions[0]} to {versions[-1]}" in README
        assert f"{what} {versions[0]} to {versions[-1]}" in PAGE


@pytest.fixture
def bare(monkeypatch, tmp_path):
    """A machine with this Python, no tools, no RabbitMQ but its own, and no pyenv."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    monkeypatch.setenv(rabbits.ROOTS, str(tmp_path))
    monkeypatch.setattr(matrix, "TOOLS", tmp_path / "build-images.sh")
    monkeypatch.setattr(matrix, "interpreter", lambda _version: tmp_path / "python")
    return tmp_path


def end(**changes):
    return matrix.End(**{"name": "newest", "python": "3.13", "celery": "5.7", "rabbitmq": "4.99", **changes})


def test_an_end_without_its_python_is_passed_over_in_one_line(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))

    assert end().run_if_there() == 0

    (line,) = capsys.readouterr().out.splitlines()
    assert line.endswith("not run, there is no python3.13, neither on PATH nor of pyenv")


def test_an_end_without_its_rabbitmq_is_passed_over_in_one_line(bare, capsys):
    assert end().run_if_there() == 0

    (line,) = capsys.readouterr().out.splitlines()
    assert line == (
        "newest: Python 3.13, Celery 5.7, RabbitMQ 4.99: not run, "
        f"there is no RabbitMQ 4.99 here, in {bare} or as an image"
    )


@pytest.mark.usefixtures("bare")
def test_tools_that_fail_are_quoted_and_the_end_is_passed_over(monkeypatch, capsys):
    matrix.TOOLS.write_text("#!/bin/sh\necho no mirror >&2\nexit 1\n")
    matrix.TOOLS.chmod(0o755)
    monkeypatch.setitem(matrix.TARGETS, "4.99", "rootfs-none")

    assert end().run_if_there() == 0

    assert capsys.readouterr().out.endswith("not run, build-images.sh made no RabbitMQ 4.99: no mirror\n")


@pytest.mark.usefixtures("bare")
def test_tools_that_take_too_long_are_ended_and_the_end_is_passed_over(monkeypatch, capsys):
    matrix.TOOLS.write_text(f"#!/bin/sh\n{SLEEP} 60\n")
    matrix.TOOLS.chmod(0o755)
    monkeypatch.setitem(matrix.TARGETS, "4.99", "rootfs-none")
    monkeypatch.setattr(matrix, "BUILD_SECONDS", 0.3)

    assert end().run_if_there() == 0

    assert capsys.readouterr().out.endswith("not run, build-images.sh has not made RabbitMQ 4.99 within 0.3 s\n")


def test_a_rabbitmq_is_found_by_its_version_among_root_filesystems(bare):
    for name, version in {"a": "4.98.3", "b": "4.99.0"}.items():
        (bare / name / "usr/lib/rabbitmq/lib" / f"rabbitmq_server-{version}").mkdir(parents=True)
    (bare / "b" / ".complete").touch()

    assert rabbits.root_of("4.99") == bare / "b"
    assert rabbits.root_of("4.9") is None
    assert rabbits.root_of("4.98") is None, "nobody has finished it"
    assert rabbits.is_of("4.9", "4.9.1")
    assert not rabbits.is_of("4.9", "4.99.0")
