"""How a command ends when it cannot go on: in one sentence, or, when nobody reads its output any more, quietly."""

from __future__ import annotations

import functools
import os
import select
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click
from amqp.exceptions import AMQPError
from kombu.exceptions import KombuError

from celery_dlx_retry.app.task_options import check_urls
from celery_dlx_retry.broker.address import shown
from celery_dlx_retry.cli.output import echo
from celery_dlx_retry.errors import BadBrokerURL, ConfigurationError, DLXError
from celery_dlx_retry.values.escaping import printable
from celery_dlx_retry.worker.bootstep import Topology

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# What answers on the port may send any text.
_LONGEST_TEXT = 500
_CHANGED = "celery_dlx_retry.changed"


@contextmanager
def one_sentence(app: Any) -> Iterator[None]:
    """No traceback for a broker that is down; for a program or a setting that is wrong, ``told`` sees to that."""
    try:
        yield
    except ConfigurationError:
        raise  # and no broker that comes back mends it, for which `watch` would wait
    except DLXError as exc:
        raise click.ClickException(printable(str(exc))) from exc
    except (AMQPError, KombuError, OSError) as exc:
        if isinstance(exc, BrokenPipeError) and _nobody_reads():
            raise
        raise click.ClickException(
            f"{_broker(app)} cannot be used: {printable(str(exc)[:_LONGEST_TEXT]).rstrip('.')}."
        ) from exc


def told(command: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap what runs a command: a program or a setting that is wrong is said in one sentence, too."""

    @functools.wraps(command)
    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            return command(*args, **kwargs)
        except ConfigurationError as exc:
            raise click.ClickException(printable(str(exc))) from exc
        except (ValueError, TypeError, KeyError):
            problem = _unreadable_url()
            if problem is None:
                raise
        # Not in the block above: Celery's traceback would quote a part of the URL.
        raise click.ClickException(printable(str(problem)))

    return run


def _unreadable_url() -> BadBrokerURL | None:
    """Return what is wrong with the broker's URL of an app with tasks of ours."""
    context = click.get_current_context(silent=True)
    app = getattr(context.obj, "app", None) if context else None
    if app is None or Topology not in app.steps["consumer"]:
        return None
    try:
        check_urls(app)
    except BadBrokerURL as problem:
        return problem
    return None


class QuietGroup(click.Group):
    """Commands that may be cut off by ``| head``: whoever has seen enough gets no complaint."""

    @told
    def invoke(self, ctx: click.Context) -> None:
        """Run the command; a closed pipe is a good end, unless it was in the middle of changing something."""
        try:
            super().invoke(ctx)
            sys.stdout.flush()  # what nobody reads shows here, and not when the process ends
        except click.ClickException as exc:
            # It may name a queue or an id that came with a message.
            exc.message = printable(exc.message)  # type: ignore[misc]
            raise
        except BrokenPipeError:
            if not _nobody_reads():
                raise
            # What is still in a buffer shall not fail once more when the process ends.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            if ctx.meta.get(_CHANGED):
                echo("Stopped: the output was closed.", err=True)
            ctx.exit(1 if ctx.meta.get(_CHANGED) else 0)


def changes_something() -> None:
    """From now on an early end leaves something half done."""
    click.get_current_context().meta[_CHANGED] = True


def _broker(app: Any) -> str:
    """Where it is, and never how to get in."""
    return f"The broker at {shown(app.connection_for_read())},"


def _nobody_reads() -> bool:
    """Whether it is our output that broke, not the way to the broker."""
    try:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
        return bool(poll.poll(0))
    except (OSError, ValueError, AttributeError):  # no file at all, or no poll(), as on Windows
        return False
