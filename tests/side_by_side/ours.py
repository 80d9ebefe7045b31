"""The worker with our tasks: ``celery -A ours worker``."""

from __future__ import annotations

from tasks import app_with

from celery_dlx_retry import DLXRetryTask, Fixed

app = app_with(DLXRetryTask, queue="ours")
app.tasks["ours.once"].policy = Fixed(1, retries=1)
