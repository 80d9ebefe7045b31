"""The flags that we add to ``celery worker``."""

from __future__ import annotations

import click
from celery.bin.base import CeleryOption

from celery_dlx_retry.cli.parameters import Seconds
from celery_dlx_retry.policy.policies import MAX_DELAY_MS

_GROUP = "DLX Retry Options"

FLAGS = (
    CeleryOption(
        ("--dlx-prefix",),
        help_group=_GROUP,
        metavar="NAME",
        help="First part of the names of our queues and exchanges; overrules dlx_prefix.",
    ),
    CeleryOption(
        ("--dlx-queue-type",),
        help_group=_GROUP,
        type=click.Choice(["classic", "quorum"]),
        help="Type of lanes and dead-letter queues; overrules dlx_queue_type.",
    ),
    CeleryOption(
        ("--dlx-declare/--dlx-check-only",),
        help_group=_GROUP,
        default=None,
        help="Declare missing queues and exchanges, or only check that they exist; overrules dlx_declare.",
    ),
    CeleryOption(
        ("--dlx-confirm-timeout",),
        help_group=_GROUP,
        type=Seconds(min=0, min_open=True, max=MAX_DELAY_MS // 1000),
        metavar="SECONDS",
        help="How long a publish waits for the broker's confirm; overrules dlx_confirm_timeout.",
    ),
    CeleryOption(
        ("--dlx-require-rabbitmq",),
        help_group=_GROUP,
        is_flag=True,
        default=None,
        help="Refuse to start on any other broker; overrules dlx_require_rabbitmq.",
    ),
)
