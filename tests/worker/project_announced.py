"""The project where apps may not declare: one task announces a lane for every wait that another may ask for."""

from __future__ import annotations

from project import app

from celery_dlx_retry import Delays, DLXRetryTask
from celery_dlx_retry.topology.lanes import grid

app.conf.update(dlx_declare=False, dlx_grid=2, dlx_max_delay=600)


@app.task(base=DLXRetryTask, policy=Delays([ms / 1000 for ms in grid(2, 600_000)]))
def announce():
    """Never called."""
