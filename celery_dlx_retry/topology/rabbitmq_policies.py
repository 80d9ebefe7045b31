"""Find the RabbitMQ policy that applies to a queue or an exchange. Retry policies are in policy/."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping  # noqa: TC003 - a dataclass field
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from celery_dlx_retry.topology.permissions import literal

if TYPE_CHECKING:
    from collections.abc import Iterable

    from celery_dlx_retry.settings import QueueType
    from celery_dlx_retry.topology.names import Names, WorkQueue


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


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterPolicy:
    """One policy for each work queue, because it contains the routing key."""

    name: str
    vhost: str
    pattern: str
    priority: int
    definition: Mapping[str, Any]
    #: The policy that applies to the queue today; this one replaces it and keeps its settings. Empty: none applies.
    replaces: str = ""

    def rabbitmqctl(self) -> str:
        """Return a shell command for the broker's host."""
        return shlex.join(
            ["rabbitmqctl", "set_policy", "--vhost", self.vhost, "--priority", str(self.priority),
             "--apply-to", "queues", self.name, self.pattern, json.dumps(dict(self.definition))]
        )  # fmt: skip

    def http(self, *, url: str, user: str) -> str:
        """Return a shell command for any other host; curl asks for the password."""
        body = {
            "pattern": self.pattern,
            "definition": dict(self.definition),
            "priority": self.priority,
            "apply-to": "queues",
        }
        target = f"{url}/api/policies/{quote(self.vhost, safe='')}/{quote(self.name, safe='')}"
        return shlex.join(
            ["curl", "--fail", "--user", user, "-X", "PUT", "-H", "content-type: application/json",
             "-d", json.dumps(body), target]
        )  # fmt: skip


def dead_letter_policy(  # noqa: PLR0913 - all facts about a queue
    names: Names,
    queue: WorkQueue,
    *,
    kind: QueueType,
    vhost: str,
    arguments: Mapping[str, Any],
    policy: str = "",
    definition: Mapping[str, Any] | None = None,
    priority: int = -1,
) -> DeadLetterPolicy:
    """Return the policy with which messages that this queue rejects become dead letters.

    RabbitMQ applies only one policy to a queue, the one with the highest priority. So ours keeps what today's policy
    sets: its name, ``definition`` and ``priority``.
    """
    wanted = {
        **(definition or {}),
        "dead-letter-exchange": names.dead(),
        "dead-letter-routing-key": queue.dead_letter_key,
    }
    limited = any(key.removeprefix("x-").startswith("max-length") for key in (*wanted, *arguments))
    if kind == "quorum" and not limited:
        # As in dlx_queue(): with a length limit, reject-publish would refuse messages of other senders.
        wanted |= {"dead-letter-strategy": "at-least-once", "overflow": "reject-publish"}
    return DeadLetterPolicy(
        name=f"{names.dead()}.{queue.name}",
        vhost=vhost,
        pattern=f"^{literal(queue.name)}$",
        priority=priority + 1,
        definition=wanted,
        replaces=policy,
    )
