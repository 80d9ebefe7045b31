"""Which of the broker's policies applies to a queue or an exchange, and what it sets. Our retry policies are others."""

from __future__ import annotations

import re
from collections.abc import Mapping  # noqa: TC003 - a dataclass field
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from celery_dlx_retry.settings import QueueType


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerPolicies:
    """All of a virtual host, as the HTTP API tells them.

    A queue is asked for its own too, but the API knows that some seconds later.
    """

    user: tuple[Mapping[str, Any], ...] = ()
    operator: tuple[Mapping[str, Any], ...] = ()

    def of(self, queue: str, kind: QueueType) -> Mapping[str, Any]:
        """The one that applies: RabbitMQ takes one, of the highest priority; empty if none matches."""
        return _applying(self.user, queue, _places(kind))

    def definition(self, queue: str, kind: QueueType) -> dict[str, Any]:
        """What it and the operator's policy set; of two numbers the smaller."""
        ours = self.of(queue, kind).get("definition", {})
        theirs = _applying(self.operator, queue, _places(kind)).get("definition", {})
        both = {key for key in ours if isinstance(ours[key], int) and isinstance(theirs.get(key), int)}
        return {**theirs, **ours, **{key: min(ours[key], theirs[key]) for key in both}}

    def alternate_exchange(self, exchange: str) -> str:
        """Return the alternate exchange that a policy gives this one; empty if none does."""
        definition = _applying(self.user, exchange, {"all", "exchanges"}).get("definition", {})
        return str(definition.get("alternate-exchange", ""))


def _places(kind: QueueType) -> set[str]:
    return {"all", "queues", f"{kind}_queues"}


def _applying(policies: Iterable[Mapping[str, Any]], name: str, places: set[str]) -> Mapping[str, Any]:
    matching = [it for it in policies if it.get("apply-to") in places and _matches(it.get("pattern", ""), name)]
    return max(matching, key=lambda it: it.get("priority", 0), default={})


def _matches(pattern: str, name: str) -> bool:
    try:
        return re.search(pattern, name) is not None
    except re.error:  # Perl knows some that Python does not
        return False
