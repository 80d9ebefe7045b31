"""The audit line of a command that changed something, on stderr."""

from __future__ import annotations

from typing import Any

from celery_dlx_retry.cli.output import echo
from celery_dlx_retry.operations.audit import audit as log
from celery_dlx_retry.operations.audit import current_user as who

__all__ = ["audit", "who"]


def audit(action: str, **facts: Any) -> None:
    """Log the line and print it."""
    echo(log(action, **facts), err=True)
