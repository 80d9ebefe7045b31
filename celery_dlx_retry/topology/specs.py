"""Exchanges, queues and bindings as values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

Argument = tuple[str, "str | int"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeSpec:
    """A durable exchange."""

    name: str
    kind: str
    arguments: tuple[Argument, ...] = ()
    #: RabbitMQ deletes it with the last queue that is bound to it.
    auto_delete: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSpec:
    """A durable queue that we declare."""

    name: str
    arguments: tuple[Argument, ...] = ()

    @property
    def is_quorum(self) -> bool:
        """Return whether it is replicated, and so needs time to settle when it is new."""
        return ("x-queue-type", "quorum") in self.arguments


@dataclass(frozen=True, slots=True, kw_only=True)
class BindingSpec:
    """A binding of a queue to an exchange."""

    exchange: str
    queue: str
    routing_key: str = ""
    arguments: tuple[tuple[str, str | int | bool], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """A set of broker objects in the order in which they are declared."""

    exchanges: tuple[ExchangeSpec, ...] = ()
    queues: tuple[QueueSpec, ...] = ()
    bindings: tuple[BindingSpec, ...] = ()

    def __or__(self, other: Topology) -> Topology:
        """Return the objects of both."""
        return Topology.union((self, other))

    @classmethod
    def union(cls, parts: Iterable[Topology]) -> Topology:
        """Return the objects of all parts, each once."""
        parts = list(parts)
        return cls(
            exchanges=tuple(dict.fromkeys(it for part in parts for it in part.exchanges)),
            queues=tuple(dict.fromkeys(it for part in parts for it in part.queues)),
            bindings=tuple(dict.fromkeys(it for part in parts for it in part.bindings)),
        )
