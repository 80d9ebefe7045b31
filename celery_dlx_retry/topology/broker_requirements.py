"""Check the product, version and capabilities that a broker names when a connection opens."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from celery_dlx_retry.errors import Unsuitable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from celery_dlx_retry.settings import QueueType

RABBITMQ = "RabbitMQ"
#: The first with at-least-once dead-lettering.
OLDEST_VERSION = (3, 10)
#: The first whose quorum queues can delay a redelivery.
DELAYED_RETRY_VERSION = (4, 3)

_LONGEST_TEXT = 64
_NEEDED = {
    "publisher_confirms": "it does not confirm what is published, so that a retry could be lost unnoticed",
    "basic.nack": "it cannot refuse what is published, so that a full lane would lose a retry",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A broker as it names itself in AMQP's handshake."""

    product: str
    version: str
    capabilities: frozenset[str]

    @classmethod
    def of(cls, properties: Mapping[str, Any]) -> Server:
        """Return the broker with these server properties."""
        capabilities = properties.get("capabilities")
        capabilities = capabilities if isinstance(capabilities, dict) else {}
        return cls(
            product=_short(properties.get("product", "")),
            version=_short(properties.get("version", "")),
            capabilities=frozenset(name for name, has in capabilities.items() if has),
        )

    def __str__(self) -> str:
        return f"{self.product or 'unknown'} {self.version}".strip()

    @property
    def is_rabbitmq(self) -> bool:
        """Return whether it calls itself RabbitMQ, as Amazon MQ and CloudAMQP do, too."""
        return self.product == RABBITMQ

    @property
    def numbers(self) -> tuple[int, ...]:
        """Return the version as numbers, for comparisons; empty if it has none."""
        match = re.match(r"\d+(\.\d+)*", self.version, re.ASCII)
        return tuple(map(int, match[0].split("."))) if match else ()


def _short(text: object) -> str:
    """Return a short printable text: the server chooses it, and it must not control a terminal or fill a log."""
    return "".join(char if char.isprintable() else "?" for char in str(text)[:_LONGEST_TEXT])


def problems(server: Server, *, lanes: QueueType, delayed_retry: Iterable[str] = ()) -> Iterator[Unsuitable]:
    """Yield why this broker does not suit lanes of this type, or these work queues with a delayed retry."""
    found = [(why, "Use RabbitMQ 3.10 or newer.") for name, why in _NEEDED.items() if name not in server.capabilities]
    if server.is_rabbitmq and server.numbers and server.numbers < OLDEST_VERSION:
        problem = "it has no at-least-once dead-lettering, which came with 3.10; waiting tasks could be lost"
        found.append((problem, "Upgrade it."))
    if not server.is_rabbitmq and lanes == "quorum":
        # LavinMQ accepts x-queue-type=quorum, and makes another kind of queue.
        problem = "lanes and dead-letter queues must be quorum queues, which only RabbitMQ is known to have"
        cure = 'Use RabbitMQ; or set dlx_queue_type = "classic", and test it well: we have never tried it.'
        found.append((problem, cure))
    if not (server.is_rabbitmq and server.numbers >= DELAYED_RETRY_VERSION):
        for queue in delayed_retry:
            problem = f"it ignores the delayed_retry of the queue {queue!r}, which came with RabbitMQ 4.3"
            found.append((problem, "Remove it from dlx_queue(), or upgrade the broker."))
    for problem, cure in found:
        yield Unsuitable(broker=str(server), problem=problem, cure=cure)
