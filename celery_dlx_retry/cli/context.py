"""What commands share: their options, the session with the broker, and notes on stderr."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from celery_dlx_retry.cli.errors import click_errors
from celery_dlx_retry.cli.output import echo
from celery_dlx_retry.cli.parameters import QUEUE_NAMES
from celery_dlx_retry.operations.monitor import Audited, Notice
from celery_dlx_retry.operations.session import BrokerSession, open_session

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


queues_option = click.option(
    "--queues",
    "-Q",
    "queue_names",
    type=QUEUE_NAMES,
    metavar="NAMES",
    default=None,
    help="Work queues, separated by commas, as for `celery worker`; by default all of the app's.",
)
management_option = click.option(
    "--management-url",
    metavar="URL",
    envvar="DLX_MANAGEMENT_URL",
    default=None,
    help="RabbitMQ's HTTP API. By default port 15672 of the broker's host, or 15671 over https if AMQP is encrypted. "
    "A URL without credentials gets those of the broker.  [env var: DLX_MANAGEMENT_URL]",
)
ladder_option = click.option(
    "--ladder", is_flag=True, help="Also the ladder, which the first countdown or eta declares otherwise."
)

_NOTED = "celery_dlx_retry.no_app_noted"


@contextmanager
def app_of(ctx: click.Context) -> Iterator[Any]:
    """Yield the app for an operation without a session; its errors are one sentence."""
    note_if_no_app_was_named()
    with click_errors(ctx.obj.app):
        yield ctx.obj.app


@contextmanager
def session_of(
    ctx: click.Context, queue_names: tuple[str, ...] | None, management_url: str | None = None
) -> Iterator[BrokerSession]:
    """Yield a session with the broker of the app; its errors are one sentence."""
    with (
        app_of(ctx) as app,
        open_session(app, queues=queue_names or (), management_url=management_url) as session,
    ):
        yield session


def is_app_named() -> bool:
    """Whether the user named an app. Without ``-A``, Celery makes one without tasks, on the default broker."""
    context = click.get_current_context(silent=True)
    return context is None or context.find_root().params.get("app", "") is not None


def note_if_no_app_was_named() -> None:
    """Say on stderr that the command uses an app without tasks; once, also if `watch` calls this again."""
    if is_app_named():
        return
    meta = click.get_current_context().find_root().meta
    if not meta.get(_NOTED):
        meta[_NOTED] = True
        note("no app was named, so this is one without tasks and settings. Name one: celery -A your_project dlx …")


def report_missing(**missing: Iterable[str]) -> bool:
    """Print on stderr what was not found, such as ``task_id=["a"]``; return True if anything was not."""
    named = [f"{kind.replace('_', ' ')} {name}" for kind, names in missing.items() for name in names]
    if named:
        echo(f"Not found: {', '.join(named)}.", err=True)
    return bool(named)


def print_audit(notice: Notice) -> None:
    """Print the audit line of an operation on stderr; ignore its other notices."""
    if isinstance(notice, Audited):
        echo(notice.line, err=True)


def note(text: str) -> None:
    """Print a remark on stderr, so that a redirected stdout has only the result."""
    echo(f"Note: {text}", err=True)
