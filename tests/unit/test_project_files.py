"""The files for contributors and for GitHub agree with the Makefile and with pyproject.toml."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
PYPROJECT = (ROOT / "pyproject.toml").read_text()
MAKEFILE = (ROOT / "Makefile").read_text()
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
YAMLS = [*sorted((ROOT / ".github").rglob("*.yml")), ROOT / ".pre-commit-config.yaml"]


def commands(workflow):
    jobs = yaml.safe_load(workflow.read_text())["jobs"].values()
    return [step["run"] for job in jobs for step in job["steps"] if "run" in step]


@pytest.mark.parametrize("file", YAMLS, ids=lambda file: file.name)
def test_every_yaml_file_can_be_read(file):
    assert isinstance(yaml.safe_load(file.read_text()), dict)


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda workflow: workflow.stem)
def test_every_make_target_and_every_folder_of_tests_in_a_workflow_exists(workflow):
    text = "\n".join(commands(workflow))

    for target in re.findall(r"^make (\S+)", text, re.MULTILINE):
        assert re.search(rf"^{re.escape(target)}:", MAKEFILE, re.MULTILINE), target
    for folder in re.findall(r"\btests/\w+", text):
        assert (ROOT / folder).is_dir()


def test_ci_runs_lint_unit_broker_and_docs_on_rabbitmq_3_13_and_4():
    jobs = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"]

    assert {"lint", "unit", "broker", "docs"} <= set(jobs)
    assert jobs["broker"]["strategy"]["matrix"]["rabbitmq"] == ["3.13", "4"]
    assert "DLX_TEST_BROKER_URL" in jobs["broker"]["env"]


def test_every_python_of_the_classifiers_runs_the_unit_tests_in_ci():
    jobs = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"]

    supported = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', PYPROJECT)
    assert jobs["unit"]["strategy"]["matrix"]["python"] == supported


def test_the_pure_folders_have_a_floor_of_95_per_cent():
    measured = set(re.findall(r'^  "celery_dlx_retry\.(\w+)",$', PYPROJECT, re.MULTILINE))

    assert {"values", "policy", "settings", "wire", "topology", "deadletters", "doctor"} <= measured
    assert re.search(r"^fail_under = 95$", PYPROJECT, re.MULTILINE)
    assert "make coverage\n" in (ROOT / ".ci" / "run").read_text()


def test_the_sdist_has_what_contributors_need():
    (included,) = re.findall(r"^\[tool\.hatch\.build\.targets\.sdist\]\ninclude = \[(.+)\]$", PYPROJECT, re.MULTILINE)

    for name in re.findall(r'"([^"]+)"', included):
        assert (ROOT / name).exists()
    assert {'"Makefile"', '"CONTRIBUTING.md"', '"tests"', '"docs"'} <= set(included.split(", "))


def test_every_address_of_the_repository_is_the_one_of_pyproject():
    (repository,) = re.findall(r'^Repository = "(.+)"$', PYPROJECT, re.MULTILINE)
    owner = repository.rpartition("/")[0]

    for file in [*YAMLS, ROOT / "README.md", ROOT / "SECURITY.md", ROOT / "CONTRIBUTING.md"]:
        for found in re.findall(rf"{re.escape(owner)}[^\s)\"]*", file.read_text()):
            assert found.startswith(repository), f"{file.name}: {found}"
