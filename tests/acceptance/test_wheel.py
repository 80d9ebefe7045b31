"""What is in the wheel: the package, and nothing that changes the machine that it is installed on."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parents[2]
#: Programs that install packages, enter other root filesystems, or make namespaces.
FORBIDDEN = re.compile(r"apt-get|\bapt\b|chroot|unshare|join_cluster")


@pytest.fixture(scope="module")
def modules(tmp_path_factory):
    """The source of every module in the wheel."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    (wheel,) = folder.iterdir()
    with ZipFile(wheel) as archive:
        return {name: archive.read(name).decode() for name in archive.namelist() if name.endswith(".py")}


def test_the_wheel_has_every_module_of_the_package_and_no_other(modules):
    assert modules.keys() == {str(path.relative_to(ROOT)) for path in (ROOT / "celery_dlx_retry").rglob("*.py")}


def test_no_module_of_the_wheel_names_a_program_that_changes_the_machine(modules):
    assert {name: FORBIDDEN.findall(source) for name, source in modules.items() if FORBIDDEN.search(source)} == {}


def test_no_module_of_the_wheel_imports_from_the_repository(modules):
    imports_tests = re.compile(r"^\s*(from|import) tests\b", re.MULTILINE)

    assert [name for name, source in modules.items() if imports_tests.search(source)] == []
