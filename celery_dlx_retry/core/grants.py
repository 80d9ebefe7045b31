"""The broker permissions that each kind of process needs and no more, as RabbitMQ's regular expressions."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from celery_dlx_retry.core.topology import Names

# Not re.escape(): it escapes more than it must, and people are to read these.
_SPECIAL = re.compile(r"([\\.^$*+?{}\[\]|()])")
# RabbitMQ's name for the exchange without a name, by which a message goes straight to a queue: Celery sends by it
# whatever goes to a queue with a direct exchange, we send marks of started runs, and replays.
_STRAIGHT = (r"amq\.default",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """What a broker user must be allowed for one role."""

    role: str
    configure: str
    write: str
    read: str

    def rabbitmqctl(self, *, user: str, vhost: str) -> str:
        """A shell command for the broker's host."""
        words = ("--vhost", vhost, user, self.configure, self.write, self.read)
        return f"rabbitmqctl set_permissions {shlex.join(words)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Territory:
    """Patterns of all names that an app uses on its broker, by whose they are."""

    #: Work queues and the exchanges before them.
    work: tuple[str, ...]
    #: Dead-letter queues, which have names that the user chose.
    dead: tuple[str, ...]
    #: All else that is ours.
    ours: str
    #: What Celery's workers talk with: remote control, events; for quorum queues, its own way to wait.
    celery: tuple[str, ...]


def territory(names: Names, *, work: Iterable[str], families: Iterable[str], celery: Iterable[str]) -> Territory:
    """Of an app with these work queues and exchanges, as patterns, and these families of dead letters."""
    return Territory(
        work=_once(work),
        dead=_once(literal(names.dead_letters(family)) for family in families),
        ours=rf"{literal(names.prefix)}\.v[12]\..*",
        celery=_once(celery),
    )


def grants(there: Territory) -> tuple[Grant, ...]:
    """One for each role.

    A worker may not read its dead letters. Whoever sends may read the work queues only because Celery binds them
    before it sends, and a queue and the exchange before it have one name.
    """
    work, dead, ours, celery = there.work, there.dead, (there.ours,), there.celery
    return (
        Grant(
            role="worker",
            configure=_any(work, dead, ours, celery),
            write=_any(work, dead, ours, celery, _STRAIGHT),
            read=_any(work, ours, celery),
        ),
        Grant(
            role="worker-that-checks",
            configure=_any(work, celery),
            write=_any(work, dead, ours, celery, _STRAIGHT),
            read=_any(work, celery),
        ),
        Grant(role="sender", configure=_any(work), write=_any(work, dead, ours, _STRAIGHT), read=_any(work)),
        Grant(role="viewer", configure=_any(), write=_any(), read=_any(work, dead, ours)),
        Grant(
            role="operator",
            configure=_any(work, dead, ours),
            write=_any(work, dead, ours, _STRAIGHT),
            read=_any(work, dead, ours),
        ),
    )


def literal(name: str) -> str:
    """A pattern for this name alone."""
    return _SPECIAL.sub(r"\\\1", name)


def _any(*patterns: tuple[str, ...]) -> str:
    flat = _once(pattern for group in patterns for pattern in group)
    return f"^({'|'.join(flat)})$" if flat else "^$"


def _once(patterns: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(patterns))
