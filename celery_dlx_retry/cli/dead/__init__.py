"""``celery dlx dead …``: see, understand and repair dead letters."""

from celery_dlx_retry.cli.dead.group import dead

__all__ = ["dead"]
