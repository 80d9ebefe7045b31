"""The RabbitMQ policy that gives an existing work queue a dead-letter exchange; a new declare cannot change a queue."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from celery_dlx_retry.topology.permissions import literal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from celery_dlx_retry.settings import QueueType
    from celery_dlx_retry.topology.names import Names, WorkQueue


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
