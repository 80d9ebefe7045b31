"""What a process imports that only sends tasks."""

from __future__ import annotations

import json
import subprocess
import sys

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
    assert imported_by("import celery_dlx_retry") == set()


def test_a_process_that_only_sends_imports_no_more_of_a_worker_than_with_celery_alone():
    with_celery = imported_by(SENDER.format(more="base = Task"))
    with_ours = imported_by(SENDER.format(more="from celery_dlx_retry import DLXRetryTask as base"))

    assert with_ours == with_celery
    assert not {"billiard.pool", "celery.concurrency.prefork", "celery.concurrency.asynpool"} & with_ours
