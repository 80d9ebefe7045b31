"""The command line: ``celery dlx …`` and our flags of ``celery worker``.

The entry point ``celery.commands`` loads this package whenever ``celery`` starts, so that the flags are there before
the project's tasks are.
"""

from celery_dlx_retry.cli.main import dlx

__all__ = ["dlx"]
