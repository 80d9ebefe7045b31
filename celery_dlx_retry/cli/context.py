"""What commands share: types of options, their options, the session with the broker, and notes on stderr."""

from __future__ import annotations

import functools
import math
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from celery_dlx_retry.cli.errors import click_errors
from celery_dlx_retry.cli.output import echo
from celery_dlx_retry.operations.monitor import Audited, Notice
from celery_dlx_retry.operations.session import BrokerSession, open_session
from celery_dlx_retry.values.queue_names import name_problem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from contextlib import AbstractContextManager

    OpenSession = Callable[[], AbstractContextManager[BrokerSession]]

#: The largest count in an option: more than any queue holds, and SQLite can store it.
MOST = 2**31 - 1
DAY_SECONDS = 86_400


class Seconds(click.FloatRange):
    """A range of seconds. click accepts NaN in every range."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return a finite float."""
        found = super().convert(value, param, ctx)
        if math.isnan(found):
            self.fail(f"{value!r} is not a number of seconds.", param, ctx)
        return found


def queue_name(value: str) -> str:
    """Return the name of a queue that can exist on the broker; the type of an option."""
    if problem := name_problem(value):
        raise click.BadParameter(f"{value!r:.80} is not the name of a queue: {problem}.")
    return value


def queue_list(value: str) -> tuple[str, ...]:
    """Return names of queues, separated by commas; the type of an option."""
    names = [name.strip() for name in value.split(",") if name.strip()]
    if not names:
        raise click.BadParameter("it names no queue.")
    return tuple(map(queue_name, names))


def text(value: str) -> str:
    """Return a text that is not empty; the type of an option."""
    if not value:  # usually a variable of the shell that is not set; it would select too much
        raise click.BadParameter("it is empty. Is a variable of your shell not set?")
    return value


COUNT = click.IntRange(min=1, max=MOST)

queues_option = click.option(
    "--queues",
    "-Q",
    "queue_names",
    type=queue_list,
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
def _session(ctx: click.Context, queues: tuple[str, ...], management_url: str | None) -> Iterator[BrokerSession]:
    """Yield a session with the broker of the app; its errors are one sentence."""
    with app_of(ctx) as app, open_session(app, queues=queues, management_url=management_url) as session:
        yield session


def session_options(*options: Callable[..., Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command these options, and as its second argument a function that opens the session."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def run(
            ctx: click.Context,
            *,
            queue_names: tuple[str, ...] | None = None,
            management_url: str | None = None,
            **others: Any,
        ) -> None:
            command(ctx, functools.partial(_session, ctx, queue_names or (), management_url), **others)

        decorated: Callable[..., None] = click.pass_context(run)
        for option in reversed(options):
            decorated = option(decorated)
        return decorated

    return decorate


of_queues = session_options(queues_option, management_option)


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
