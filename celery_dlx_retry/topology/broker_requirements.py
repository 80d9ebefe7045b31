"""What a broker says of itself when a connection opens, and whether that is enough for us."""

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
#: The first whose quorum queues can hold back what a consumer did not finish.
DELAYED_RETRY_VERSION = (4, 3)

_LONGEST_TEXT = 64
_NEEDED = {
    "publisher_confirms": "it does not confirm what is published, so that nobody would know of a retry that got lost",
    "basic.nack": "it cannot refuse what is published, so that a lane that is full would lose a retry",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A broker, by the server properties of AMQP's handshake."""

    product: str
    version: str
    capabilities: frozenset[str]

    @classmethod
    def of(cls, properties: Mapping[str, Any]) -> Server:
        """From what py-amqp decoded."""
        told = properties.get("capabilities")
        capabilities = told if isinstance(told, dict) else {}
        return cls(
            product=_short(properties.get("product", "")),
            version=_short(properties.get("version", "")),
            capabilities=frozenset(name for name, has in capabilities.items() if has),
        )

    def __str__(self) -> str:
        return f"{self.product or 'unknown'} {self.version}".strip()

    @property
    def is_rabbitmq(self) -> bool:
        """Also Amazon MQ's and CloudAMQP's, which call themselves so."""
        return self.product == RABBITMQ

    @property
    def numbers(self) -> tuple[int, ...]:
        """The version, to be compared; empty if it is none."""
        found = re.match(r"\d+(\.\d+)*", self.version, re.ASCII)
        return tuple(map(int, found[0].split("."))) if found else ()


def _short(text: object) -> str:
    """Whatever answers on the port chooses this text; it must not steer a terminal or fill a log."""
    return "".join(char if char.isprintable() else "?" for char in str(text)[:_LONGEST_TEXT])


def problems(server: Server, *, lanes: QueueType, delayed_retry: Iterable[str] = ()) -> Iterator[Unsuitable]:
    """Why this broker cannot keep our promise, for lanes of this type, and work queues with a delayed retry."""
    for capability, problem in _NEEDED.items():
        if capability not in server.capabilities:
            yield Unsuitable(broker=str(server), problem=problem, cure="Use RabbitMQ 3.10 or newer.")
    if server.is_rabbitmq and server.numbers and server.numbers < OLDEST_VERSION:
        yield Unsuitable(
            broker=str(server),
            problem="at-least-once dead-lettering, without which what waits can be lost, came with 3.10",
            cure="Upgrade it.",
        )
    if not server.is_rabbitmq and lanes == "quorum":
        # LavinMQ takes x-queue-type=quorum, and makes a queue of its own kind.
        yield Unsuitable(
            broker=str(server),
            problem="lanes and dead-letter queues are to be quorum queues, which only RabbitMQ is known to have",
            cure='Use RabbitMQ; or set dlx_queue_type = "classic", and try it well: it was never tested there.',
        )
    if not (server.is_rabbitmq and server.numbers >= DELAYED_RETRY_VERSION):
        for queue in delayed_retry:
            yield Unsuitable(
                broker=str(server),
                problem=f"the delayed_retry of the queue {queue!r} came with RabbitMQ 4.3, and is ignored here",
                cure="Remove it from dlx_queue(), or upgrade the broker.",
            )
