"""The project on a quorum queue that holds back what a worker that died did not finish."""

from __future__ import annotations

from project import app

from celery_dlx_retry import dlx_queue

app.conf.task_queues = [
    dlx_queue(app.conf.task_default_queue, queue_type="quorum", delayed_retry=(2, 3), prefix=app.conf.dlx_prefix)
]
