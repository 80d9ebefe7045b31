"""How a command ends if it cannot go on: with one sentence and no traceback, or quietly if its output is closed."""

from __future__ import annotations

import functools
import os
import select
import signal
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from celery_dlx_retry.app.task_options import check_urls
from celery_dlx_retry.cli.output import echo
from celery_dlx_retry.errors import BadBrokerURL, ConfigurationError, DLXError
from celery_dlx_retry.operations.connect import broker_errors
from celery_dlx_retry.operations.operation_errors import BrokerUnavailable, InvalidRequest
from celery_dlx_retry.values.escaping import printable
from celery_dlx_retry.worker.install import is_installed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_CHANGED = "celery_dlx_retry.changed"
# Both end a process by default, without its `finally` blocks. Windows has no SIGHUP.
_ENDING = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]


@contextmanager
def click_errors(app: Any) -> Iterator[None]:
    """Raise click's errors in place of ours: one sentence, and exit code 2 for a request that makes no sense."""
    try:
        with broker_errors(app):
            yield
    except (InvalidRequest, BadBrokerURL) as exc:
        raise click.UsageError(printable(str(exc))) from exc
    except ConfigurationError:
        raise  # `watch` ends: trying again does not help
    except BrokerUnavailable as exc:
        if isinstance(exc.__cause__, BrokenPipeError) and _is_output_closed():
            raise exc.__cause__ from None
        raise click.ClickException(printable(str(exc))) from exc
    except DLXError as exc:
        raise click.ClickException(printable(str(exc))) from exc


def without_traceback(command: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a command: a wrong program or setting is one sentence."""

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
        # Outside the block above: Celery's traceback would quote a part of the URL.
        raise click.ClickException(printable(str(problem)))

    return run


def _unreadable_url() -> BadBrokerURL | None:
    """Return what is wrong with the broker's URL, if the app has tasks of ours."""
    context = click.get_current_context(silent=True)
    app = getattr(context.obj, "app", None) if context else None
    if app is None or not is_installed(app):
        return None
    try:
        check_urls(app)
    except BadBrokerURL as problem:
        return problem
    return None


class CommandGroup(click.Group):
    """A group whose commands end without a complaint if ``| head`` closes their output."""

    @without_traceback
    def invoke(self, ctx: click.Context) -> None:
        """Run the command. A closed output is exit code 0, or 1 if the command was changing something."""
        try:
            super().invoke(ctx)
            sys.stdout.flush()  # a closed output is an error here, and not at the end of the process
        except click.ClickException as exc:
            # It may contain a queue or an id that came with a message.
            exc.message = printable(exc.message)  # type: ignore[misc]
            raise
        except BrokenPipeError:
            if not _is_output_closed():
                raise
            # Python flushes its buffer once more at the end of the process.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            if ctx.meta.get(_CHANGED):
                echo("Stopped: the output was closed.", err=True)
            ctx.exit(1 if ctx.meta.get(_CHANGED) else 0)


def changes_something() -> None:
    """Call this before the first change: from now on an early end is exit code 1."""
    click.get_current_context().meta[_CHANGED] = True


@contextmanager
def ended_by_exceptions() -> Iterator[None]:
    """Let a signal that ends the process raise SystemExit instead; one that is ignored or handled stays so."""

    def end(number: int, _frame: Any) -> None:
        raise SystemExit(128 + number)

    is_main = threading.current_thread() is threading.main_thread()  # others may not set handlers
    replaced = [each for each in _ENDING if is_main and signal.getsignal(each) is signal.SIG_DFL]
    for each in replaced:
        signal.signal(each, end)
    try:
        yield
    finally:
        for each in replaced:
            signal.signal(each, signal.SIG_DFL)


def _is_output_closed() -> bool:
    """Whether stdout is broken, and not the connection to the broker."""
    try:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
        return bool(poll.poll(0))
    except (OSError, ValueError, AttributeError):  # stdout is not a file, or Windows, which has no poll()
        return False
