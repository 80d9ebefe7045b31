"""``celery dlx`` with all its commands, and the flags that ``celery worker`` gets."""

from __future__ import annotations

import click
from celery.bin.worker import worker

from celery_dlx_retry.cli.dead import dead
from celery_dlx_retry.cli.flags import FLAGS


@click.group()
def dlx() -> None:
    """See and repair what DLXRetryTask keeps in the broker."""


dlx.add_command(dead)
worker.params.extend(FLAGS)
