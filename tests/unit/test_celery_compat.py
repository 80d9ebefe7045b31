"""What differs between versions of Celery stands in one place, and goes when its time has come."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from celery_dlx_retry.worker import celery_compat as versions

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "celery_dlx_retry"
#: What a remark about one version of Celery looks like.
REMARK = re.compile(r"(celery|kombu|billiard)( \w+)? \d+\.\d|\b(before|since|until|from) 5\.\d", re.IGNORECASE)


def number(version):
    return tuple(map(int, version.split(".")))


def oldest():
    (version,) = re.findall(r'^dependencies = \["celery>=([\d.]+)"', text("pyproject.toml"), re.MULTILINE)
    return number(version)


def newest():
    """Of the matrix."""
    return max(number(version) for version in re.findall(r"celery==([\d.]+)\.\*", text("tox.ini")))


def text(file):
    return (ROOT / file).read_text()


def test_every_difference_names_a_version_and_says_what_celery_does():
    public = {name: it for name, it in vars(versions).items() if inspect.isfunction(it) and name[0] != "_"}

    assert set(public) == {*versions.ENDS, *versions.STILL_IN}
    assert all("Celery" in inspect.getdoc(function).partition("\n")[0] for function in public.values())


def test_no_difference_outlives_the_version_that_ends_it():
    over = [name for name, version in versions.ENDS.items() if number(version) <= oldest()]

    assert over == [], "our oldest Celery does without these: delete them from worker/celery_compat.py"


def test_what_has_no_end_was_looked_for_in_the_newest_celery():
    unseen = [name for name, version in versions.STILL_IN.items() if number(version) < newest()]

    assert unseen == [], "does the newest Celery still need these? worker/celery_compat.py says what it does"


def test_no_other_module_speaks_of_a_version_of_celery():
    others = [path for path in PACKAGE.rglob("*.py") if path.name != "celery_compat.py"]
    found = [f"{path.relative_to(ROOT)}: {hit[0]}" for path in others for hit in REMARK.finditer(path.read_text())]

    assert found == []
