"""Find the RabbitMQ policy that applies to a queue or an exchange. Retry policies are in policy/."""

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
    """All policies of a virtual host, from the HTTP API.

    The API also names the policy of each queue, but it knows that some seconds later.
    """

    user: tuple[Mapping[str, Any], ...] = ()
    operator: tuple[Mapping[str, Any], ...] = ()

    def of(self, queue: str, kind: QueueType) -> Mapping[str, Any]:
        """Return the policy that applies to a queue: the one with the highest priority; empty if none matches."""
        return _applying(self.user, queue, _apply_to(kind))

    def definition(self, queue: str, kind: QueueType) -> dict[str, Any]:
        """Return what the policy and the operator policy set; of two numbers the smaller one."""
        user = self.of(queue, kind).get("definition", {})
        operator = _applying(self.operator, queue, _apply_to(kind)).get("definition", {})
        both = {key for key in user if isinstance(user[key], int) and isinstance(operator.get(key), int)}
        return {**operator, **user, **{key: min(user[key], operator[key]) for key in both}}

    def alternate_exchange(self, exchange: str) -> str:
        """Return the alternate exchange that a policy gives this one; empty if none does."""
        definition = _applying(self.user, exchange, {"all", "exchanges"}).get("definition", {})
        return str(definition.get("alternate-exchange", ""))


def _apply_to(kind: QueueType) -> set[str]:
    return {"all", "queues", f"{kind}_queues"}


def _applying(policies: Iterable[Mapping[str, Any]], name: str, apply_to: set[str]) -> Mapping[str, Any]:
    matching = [it for it in policies if it.get("apply-to") in apply_to and _matches(it.get("pattern", ""), name)]
    return max(matching, key=lambda it: it.get("priority", 0), default={})


def _matches(pattern: str, name: str) -> bool:
    try:
        return re.search(pattern, name) is not None
    except re.error:  # Perl has patterns that Python does not have
        return False
