"""The project of the matrix: some of each other project, and what a worker is killed with."""

from __future__ import annotations

import time
from pathlib import Path

import project_canvas  # noqa: F401 - its tasks
import project_later  # noqa: F401 - its tasks
from project import app, record

from celery_dlx_retry import DLXRetryTask


@app.task(bind=True, base=DLXRetryTask, name="smoke.exhaust", max_retries=2, default_retry_delay=0.1)
def exhaust(self, repaired):
    """Fail as long as that file is missing."""
    record(self)
    if not Path(repaired).exists():
        raise self.retry(exc=ValueError("always"))
    return "repaired"


@app.task(bind=True, base=DLXRetryTask, name="smoke.hold")
def hold(self):
    """Run until the worker is killed; delivered again, end at once."""
    is_again = self.request.delivery_info["redelivered"]
    record(self, again=is_again)
    if not is_again:
        time.sleep(300)  # noqa: TID251 - work that takes too long
    return "done by another"
