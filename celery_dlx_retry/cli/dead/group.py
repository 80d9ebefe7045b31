"""``celery dlx dead`` with all its commands."""

from __future__ import annotations

import click

from celery_dlx_retry.cli.dead.editing import edit_dead
from celery_dlx_retry.cli.dead.listing import group_dead, list_dead
from celery_dlx_retry.cli.dead.purging import purge_dead
from celery_dlx_retry.cli.dead.replaying import replay_dead
from celery_dlx_retry.cli.dead.showing import show_dead
from celery_dlx_retry.cli.dead.transfer import export_dead, import_dead


@click.group()
def dead() -> None:
    """Dead letters: see, understand, repair."""


for command in (list_dead, group_dead, show_dead, replay_dead, edit_dead, purge_dead, export_dead, import_dead):
    dead.add_command(command)
