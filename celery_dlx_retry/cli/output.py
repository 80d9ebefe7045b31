"""What every command says in the same way."""

from __future__ import annotations

from contextlib import contextmanager
from datetime import datetime, timezone
from typing import TYPE_CHECKING

import click
from amqp.exceptions import AMQPError
from kombu.exceptions import KombuError

from celery_dlx_retry.errors import DLXError

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def one_sentence() -> Iterator[None]:
    """No traceback for a broker that is down or a setting that is wrong."""
    try:
        yield
    except DLXError as exc:
        raise click.ClickException(str(exc)) from exc
    except (AMQPError, KombuError, OSError) as exc:
        raise click.ClickException(f"The broker cannot be reached: {exc}.") from exc


def printable(text: str) -> str:
    """What anybody put into a message may not steer a terminal."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)


def time_of(at_ms: int) -> str:
    """A moment, in UTC."""
    return datetime.fromtimestamp(at_ms / 1000, timezone.utc).strftime("%Y-%m-%d %H:%M:%S") if at_ms else "?"
