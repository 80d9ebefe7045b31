"""The worker of plain Celery: ``celery -A plain worker``."""

from __future__ import annotations

from celery import Task
from tasks import app_with

app = app_with(Task, queue="plain", acks_late=True)
