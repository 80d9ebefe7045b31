"""Which of the broker's policies applies to a queue, and what it sets. Not to be confused with our retry policies."""

from __future__ import annotations

import re
from collections.abc import Mapping  # noqa: TC003 - a dataclass field
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from celery_dlx_retry.core.settings import QueueType


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerPolicies:
    """All of a virtual host, as the HTTP API tells them.

    A queue is asked for its own too, but the API knows that some seconds later.
    """

    user: tuple[Mapping[str, Any], ...] = ()
    operator: tuple[Mapping[str, Any], ...] = ()

    def of(self, queue: str, kind: QueueType) -> Mapping[str, Any]:
        """The one that applies: RabbitMQ takes one, of the highest priority; empty if none matches."""
        return _applying(self.user, queue, kind)

    def definition(self, queue: str, kind: QueueType) -> dict[str, Any]:
        """What it and the operator's policy set; of two numbers the smaller."""
        ours = self.of(queue, kind).get("definition", {})
        theirs = _applying(self.operator, queue, kind).get("definition", {})
        both = {key for key in ours if isinstance(ours[key], int) and isinstance(theirs.get(key), int)}
        return {**theirs, **ours, **{key: min(ours[key], theirs[key]) for key in both}}


def _applying(policies: Iterable[Mapping[str, Any]], queue: str, kind: QueueType) -> Mapping[str, Any]:
    places = {"all", "queues", f"{kind}_queues"}
    matching = [it for it in policies if it.get("apply-to") in places and _matches(it.get("pattern", ""), queue)]
    return max(matching, key=lambda it: it.get("priority", 0), default={})


def _matches(pattern: str, queue: str) -> bool:
    try:
        return re.search(pattern, queue) is not None
    except re.error:  # Perl knows some that Python does not
        return False
