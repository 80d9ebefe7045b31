"""Work queues that dlx_queue() made, each with the prefix that the test says; see project.py."""

from __future__ import annotations

import json
import os

from project import app

from celery_dlx_retry import dlx_queue

app.conf.task_queues = [
    dlx_queue(name, **options) for name, options in json.loads(os.environ["PROJECT_QUEUES"]).items()
]
