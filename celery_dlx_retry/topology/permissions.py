"""The least permissions that each role needs on the broker, as regular expressions."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from celery_dlx_retry.topology.names import Names

# Erlang's regular expressions are Perl's. re.escape() escapes more than necessary, and people read these patterns.
_SPECIAL = re.compile(r"([\\.^$*+?{}\[\]|()])")
# RabbitMQ's name for the exchange without a name. It leads to every queue of the virtual host.
DEFAULT_EXCHANGE = r"amq\.default"


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """The permissions of a broker user for one role."""

    role: str
    configure: str
    write: str
    read: str

    def rabbitmqctl(self, *, user: str, vhost: str) -> str:
        """Return a shell command for the broker's host."""
        words = ("--vhost", vhost, user, self.configure, self.write, self.read)
        return f"rabbitmqctl set_permissions {shlex.join(words)}"

    @property
    def reaches_every_queue(self) -> bool:
        """Return whether this user can send a message to every queue of the virtual host."""
        return re.search(self.write, "amq.default") is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkNames:
    """One work queue of an app, as patterns: its name and its exchanges."""

    queue: str
    exchanges: tuple[str, ...] = ()
    #: Celery declares it before it sends to it or consumes from it.
    is_declared: bool = True


def grants(  # noqa: PLR0913 - names depend on all of these
    names: Names,
    *,
    work: Iterable[WorkNames],
    dead_letter_keys: Iterable[str],
    celery: Iterable[str],
    exchanges: Iterable[str] = (),
    sends_by_name: bool = True,
) -> tuple[Grant, ...]:
    """Return one grant for each role.

    ``celery`` are Celery's own names: remote control, events and, for quorum queues, its delayed delivery. The routes
    of the app name these ``exchanges``. ``sends_by_name``: Celery sends at least one task by the default exchange.

    RabbitMQ requires configure to declare and to delete; write to publish, and to bind a queue; read to get, to consume
    and to purge, and to bind to an exchange. To declare a queue with a dead-letter exchange also requires read on the
    queue and write on the exchange.
    """
    work, prefix, celery = list(work), literal(names.prefix), list(celery)
    queues = [it.queue for it in work]
    sends = [*(name for it in work for name in it.exchanges), *exchanges]
    sends += [DEFAULT_EXCHANGE] if sends_by_name else []
    # Celery declares these, before it sends to them or consumes from them.
    declared_queues = [it.queue for it in work if it.is_declared]
    declared_exchanges = [name for it in work if it.is_declared for name in it.exchanges]
    declared = declared_queues + declared_exchanges
    dead = [literal(names.dead_letters(dead_letter_key)) for dead_letter_key in dead_letter_keys]
    ours, waiting = [rf"{prefix}\.v[12]\..*"], [rf"{prefix}\.v2\..*"]
    # Configure, write and read. A worker writes to its queues, too: it binds them to the return exchange. RabbitMQ 4
    # shows a queue only to a user with a permission on it; for a worker that checks, write is the least.
    roles: dict[str, tuple[list[str], list[str], list[str]]] = {
        "worker": (
            [*declared, *dead, *ours, *celery],
            [*queues, *dead, *ours, *celery, *sends],
            [*queues, *declared_exchanges, *ours, *celery],
        ),
        "worker-that-checks": (
            [*declared, *celery],
            [*declared_queues, *dead, *ours, *celery, *sends],
            [*queues, *declared_exchanges, *celery],
        ),
        "sender": (declared, [*declared_queues, *waiting, *sends], declared_exchanges),
        "viewer": ([], [], []),
        "reader": ([], [], dead + ours),
        "operator": ([], [*queues, *dead, *ours], dead + ours),
        "declarer": ([*declared, *dead, *ours], [*queues, *dead, *ours], declared_exchanges + ours),
    }
    return tuple(
        Grant(role=role, configure=_any(configure), write=_any(write), read=_any(read))
        for role, (configure, write, read) in roles.items()
    )


def literal(name: str) -> str:
    """Return a pattern that matches only this name."""
    return _SPECIAL.sub(r"\\\1", name)


def _any(patterns: list[str]) -> str:
    return f"^({'|'.join(dict.fromkeys(patterns))})$" if patterns else "^$"
