"""The command line: ``celery dlx …`` and our flags of ``celery worker``.

The entry point ``celery.commands`` loads this package at every start of ``celery``. So the flags exist before the
project's tasks are loaded.
"""

from celery_dlx_retry.cli.main import dlx

__all__ = ["dlx"]
