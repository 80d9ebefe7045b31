"""What a process imports that only sends tasks, and what our pytest plugin imports."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

import celery_dlx_retry
from celery_dlx_retry import testing

OF_A_WORKER = ("celery.worker", "celery.concurrency", "billiard.pool", "celery_dlx_retry.worker.bootstep")
SENDER = """
from celery import Celery, Task

{more}
app = Celery("sender", broker="memory://")

@app.task(base=base)
def charge(order_id):
    pass

app.finalize()
charge.delay(1)
"""


def imported_by(code: str) -> set[str]:
    """The modules of a worker that a process has after this code."""
    code = f"{code}\nimport json, sys\nprint(json.dumps([*sys.modules]))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    return {name for name in json.loads(run.stdout) if name.startswith(OF_A_WORKER)}


def test_importing_the_package_imports_no_pool_and_no_worker():
    assert imported_by("from celery_dlx_retry import *") == set()


def test_a_process_that_only_sends_imports_no_more_of_a_worker_than_with_celery_alone():
    with_celery = imported_by(SENDER.format(more="base = Task"))
    with_ours = imported_by(SENDER.format(more="from celery_dlx_retry import DLXRetryTask as base"))

    assert with_ours == with_celery
    assert not {"billiard.pool", "celery.concurrency.prefork", "celery.concurrency.asynpool"} & with_ours


@pytest.mark.parametrize("package", [celery_dlx_retry, testing])
def test_every_public_name_is_there_and_no_other(package):
    assert all(getattr(package, name) is not None for name in package.__all__)
    with pytest.raises(AttributeError, match=r"has no attribute 'nothing'"):
        _ = package.nothing


def test_the_pytest_plugin_imports_nothing_of_ours_until_a_test_uses_a_fixture(tmp_path):
    (tmp_path / "test_shop.py").write_text("""
import sys

def test_ours():
    ours = {name for name in sys.modules if name.startswith("celery_dlx_retry.")}
    assert ours == {
        "celery_dlx_retry.lazy_names", "celery_dlx_retry.testing", "celery_dlx_retry.testing.pytest_plugin"
    }
    assert "celery" not in sys.modules

def test_a_fixture(dlx):
    assert "celery_dlx_retry.testing.recorder" in sys.modules
""")
    # Plugins of other packages may import Celery; only ours is loaded.
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "celery_dlx_retry", str(tmp_path)]

    run = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=60
    )

    assert "2 passed" in run.stdout, run.stdout + run.stderr
