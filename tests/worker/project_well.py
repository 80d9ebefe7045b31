"""A project in which the doctor finds nothing that bites."""

from __future__ import annotations

import json
import os

from celery import Celery

from celery_dlx_retry import DLXRetryTask, Exponential, dlx_queue

app = Celery("well")
app.conf.update(json.loads(os.environ.get("PROJECT_CONF", "{}")))
app.conf.update(
    task_queues=[
        dlx_queue(app.conf.task_default_queue, prefix=app.conf.dlx_prefix),
        dlx_queue(f"{app.conf.task_default_queue}.quorum", prefix=app.conf.dlx_prefix, queue_type="quorum"),
    ],
    broker_transport_options={"confirm_publish": True},
    result_expires=86_400,
)


@app.task(bind=True, base=DLXRetryTask, policy=Exponential(1, limit=600, retries=5))
def charge(self):
    raise self.retry()
