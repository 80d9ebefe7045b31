"""``celery dlx`` with its commands; the flags of ``celery worker``, and its errors without a traceback."""

from __future__ import annotations

from functools import partial

import click
from celery.bin.base import CeleryOption
from celery.bin.beat import beat
from celery.bin.worker import worker

from celery_dlx_retry.cli.context import Seconds, is_app_named
from celery_dlx_retry.cli.dead.changing import edit_dead, import_dead, purge_dead
from celery_dlx_retry.cli.dead.reading import export_dead, group_dead, list_dead, show_dead
from celery_dlx_retry.cli.dead.replaying import replay_dead
from celery_dlx_retry.cli.errors import CommandGroup, without_traceback
from celery_dlx_retry.cli.exporter import exporter
from celery_dlx_retry.cli.status import status, waiting
from celery_dlx_retry.cli.top import top, watch
from celery_dlx_retry.cli.topology import check, declare, doctor, permissions, plan, policy, prune
from celery_dlx_retry.policy.policies import MAX_DELAY_MS
from celery_dlx_retry.version import __version__

_flag = partial(CeleryOption, help_group="DLX Retry Options")
_FLAGS = (
    _flag(
        ("--dlx-prefix",),
        metavar="NAME",
        help="First part of the names of our queues and exchanges; overrules dlx_prefix.",
    ),
    _flag(
        ("--dlx-queue-type",),
        type=click.Choice(["classic", "quorum"]),
        help="Type of lanes and dead-letter queues; overrules dlx_queue_type.",
    ),
    _flag(
        ("--dlx-declare/--dlx-check-only",),
        default=None,
        help="Declare missing queues and exchanges, or only check that they exist; overrules dlx_declare.",
    ),
    _flag(
        ("--dlx-confirm-timeout",),
        type=Seconds(min=0, min_open=True, max=MAX_DELAY_MS // 1000),
        metavar="SECONDS",
        help="How long a publish waits for the broker's confirm; overrules dlx_confirm_timeout.",
    ),
    _flag(
        ("--dlx-require-rabbitmq",),
        is_flag=True,
        default=None,
        help="Refuse to start on any other broker; overrules dlx_require_rabbitmq.",
    ),
    _flag(
        ("--dlx-metrics-port",),
        type=click.IntRange(1, 65535),
        metavar="PORT",
        help="Serve metrics for Prometheus on this port; needs the extra celery-dlx-retry[prometheus].",
    ),
)


@click.group(cls=CommandGroup, invoke_without_command=True)
@click.version_option(__version__, message="%(version)s", help="Print the version of celery-dlx-retry.")
@click.pass_context
def dlx(ctx: click.Context) -> None:
    """See and repair what DLXRetryTask keeps in the broker; without a command, show `top`."""
    if ctx.invoked_subcommand is None:
        if not is_app_named():
            click.echo(ctx.get_help())
            return
        with top.make_context("top", [], parent=ctx) as alone:
            top.invoke(alone)


dead = click.Group(
    "dead",
    [list_dead, group_dead, show_dead, replay_dead, edit_dead, purge_dead, export_dead, import_dead],
    help="Dead letters: see, understand, repair.",
)
for command in (top, watch, dead, waiting, status, exporter, doctor, plan, check, declare, permissions, policy, prune):
    dlx.add_command(command)
worker.params.extend(_FLAGS)
for each in (worker, beat):
    each.callback = without_traceback(each.callback)
