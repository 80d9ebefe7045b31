"""A project that has much for the doctor to find."""

from __future__ import annotations

import json
import os

from celery import Celery
from kombu.entity import Exchange, Queue

from celery_dlx_retry import DLXRetryTask, Fixed

app = Celery("ill")
app.conf.update(json.loads(os.environ.get("PROJECT_CONF", "{}")))
name = f"{app.conf.task_default_queue}.ill"
app.conf.update(
    task_default_queue=name,
    task_queues=[
        Queue(name, Exchange(name, delivery_mode=1), durable=False),
        Queue(f"{name}.dead"),
        Queue(f"{name}.short", max_length=10),
        Queue(f"{name}.quorum", queue_arguments={"x-queue-type": "quorum", "x-delivery-limit": 3}),
    ],
    beat_schedule={"nightly": {"task": "ill.charge", "schedule": 3600, "options": {"countdown": 7200}}},
    result_expires=30,
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_detect_quorum_queues=False,
    worker_prefetch_multiplier=0,
)


@app.task(base=DLXRetryTask, policy=Fixed(60, retries=3), acks_late=False)
def charge():
    """Ours, and acknowledged early."""


@app.task(bind=True)
def ship(self):
    raise self.retry(countdown=5)


@app.task(autoretry_for=(OSError,))
def invoice():
    """Not ours, and retried."""
