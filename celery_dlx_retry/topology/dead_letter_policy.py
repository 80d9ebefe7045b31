"""The policy that attaches a dead-letter exchange to a work queue that exists, which a redeclare could not."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

if TYPE_CHECKING:
    from collections.abc import Mapping

    from celery_dlx_retry.settings import QueueType
    from celery_dlx_retry.topology.names import Names, WorkQueue


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterPolicy:
    """One per work queue: the routing key is part of it."""

    name: str
    vhost: str
    pattern: str
    priority: int
    definition: Mapping[str, Any]
    #: The policy that applies to the queue today and that this one replaces, keeping what it sets; empty if none does.
    replaces: str = ""

    def rabbitmqctl(self) -> str:
        """A shell command for the broker's host."""
        return shlex.join(
            ["rabbitmqctl", "set_policy", "--vhost", self.vhost, "--priority", str(self.priority),
             "--apply-to", "queues", self.name, self.pattern, json.dumps(dict(self.definition))]
        )  # fmt: skip

    def http(self, *, url: str, user: str) -> str:
        """A shell command for anywhere else; curl asks for the password."""
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


def dead_letter_policy(  # noqa: PLR0913 - what there is to know about a queue
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
    """What rejects of this queue need to become dead letters.

    RabbitMQ applies one policy to a queue, the one of the highest priority; so what another one sets is kept in ours:
    its name, ``definition`` and ``priority``.
    """
    wanted = {
        **(definition or {}),
        "dead-letter-exchange": names.dead(),
        "dead-letter-routing-key": queue.dead_letter_key,
    }
    limited = any(key.removeprefix("x-").startswith("max-length") for key in (*wanted, *arguments))
    if kind == "quorum" and not limited:
        # As dlx_queue() does: with a length limit reject-publish would refuse what others send.
        wanted |= {"dead-letter-strategy": "at-least-once", "overflow": "reject-publish"}
    return DeadLetterPolicy(
        name=f"{names.dead()}.{queue.name}",
        vhost=vhost,
        pattern=f"^{_escaped(queue.name)}$",
        priority=priority + 1,
        definition=wanted,
        replaces=policy,
    )


def _escaped(name: str) -> str:
    """Erlang's regular expressions are Perl's; re.escape() would also escape what needs none, dashes for one."""
    return re.sub(r"([\\^$.|?*+()\[\]{}])", r"\\\1", name)
