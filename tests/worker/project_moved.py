"""The project while its work queue is moved to quorum: its workers consume the old one and the new one."""

from __future__ import annotations

from kombu.entity import Exchange, Queue
from project import app

from celery_dlx_retry import dlx_queue

prefix = app.conf["dlx_prefix"]
app.conf.task_queues = [
    Queue(f"{prefix}.work", Exchange(f"{prefix}.work"), routing_key=f"{prefix}.work"),
    dlx_queue(f"{prefix}.moved", queue_type="quorum", prefix=prefix),
]
app.conf.task_default_queue = f"{prefix}.moved"
