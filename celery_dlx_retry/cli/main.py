"""``celery dlx`` with its commands; the flags of ``celery worker``, and its errors without a traceback."""

from __future__ import annotations

import click
from celery.bin.beat import beat
from celery.bin.worker import worker

from celery_dlx_retry.cli.dead import dead
from celery_dlx_retry.cli.doctor import doctor
from celery_dlx_retry.cli.errors import CommandGroup, without_traceback
from celery_dlx_retry.cli.flags import FLAGS
from celery_dlx_retry.cli.permissions import permissions
from celery_dlx_retry.cli.status import status, watch
from celery_dlx_retry.cli.topology import check, declare, plan, policy, prune
from celery_dlx_retry.cli.waiting import waiting
from celery_dlx_retry.version import __version__


@click.group(cls=CommandGroup)
@click.version_option(__version__, message="%(version)s", help="Print the version of celery-dlx-retry.")
def dlx() -> None:
    """See and repair what DLXRetryTask keeps in the broker."""


for command in (dead, waiting, status, watch, doctor, plan, check, declare, permissions, policy, prune):
    dlx.add_command(command)
worker.params.extend(FLAGS)
for each in (worker, beat):
    each.callback = without_traceback(each.callback)
