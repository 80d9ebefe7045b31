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
    #: It goes with the last queue behind it.
    auto_delete: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSpec:
    """A durable queue of ours."""

    name: str
    arguments: tuple[Argument, ...] = ()

    @property
    def is_quorum(self) -> bool:
        """Whether it is replicated, and so slow to settle when new."""
        return ("x-queue-type", "quorum") in self.arguments


@dataclass(frozen=True, slots=True, kw_only=True)
class BindingSpec:
    """From an exchange to a queue."""

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
        """Both."""
        return Topology.union((self, other))

    @classmethod
    def union(cls, parts: Iterable[Topology]) -> Topology:
        """All of these; what several of them have is in it once."""
        parts = list(parts)
        return cls(
            exchanges=tuple(dict.fromkeys(it for part in parts for it in part.exchanges)),
            queues=tuple(dict.fromkeys(it for part in parts for it in part.queues)),
            bindings=tuple(dict.fromkeys(it for part in parts for it in part.bindings)),
        )
