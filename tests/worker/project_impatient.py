"""The project with a start that waits for seconds where others wait for minutes."""

from __future__ import annotations

from project import app

from celery_dlx_retry.broker import lanes
from celery_dlx_retry.worker import bootstep

__all__ = ["app"]

bootstep.RECOVERY_SECONDS = 3.0
bootstep.ANSWER_SECONDS = 3.0
bootstep.WORD_SECONDS = 1.0
lanes.MAKE_SECONDS = 0.5
