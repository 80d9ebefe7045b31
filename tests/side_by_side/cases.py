"""The tasks of the comparison, with the words of the page."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A task and how it is sent."""

    says: str
    options: dict[str, Any] = field(default_factory=dict)
    ends: bool = True  # with an event that says so


CASES = {
    "succeeds": Case(says="succeeds"),
    "heals": Case(says="is retried twice, then succeeds"),
    "exhausted": Case(says="is retried twice, then has no retry left"),
    "fails": Case(says="fails, and is not retried"),
    "countdown": Case(says="has a countdown", options={"countdown": 2}),
    "soft": Case(says="passes its soft time limit"),
    "hard": Case(says="passes its hard time limit"),
    "once": Case(says="passes its hard time limit once; ours has a policy"),
    "killed": Case(says="loses its pool process once"),
    "unknown": Case(says="is unknown to the worker"),
    "expired": Case(says="expires during its countdown", options={"countdown": 2, "expires": 1}),
    "revoked": Case(says="is revoked during its countdown", options={"countdown": 15}),
    "rejects": Case(says="raises `Reject`"),
    "ignores": Case(says="raises `Ignore`", ends=False),
    "member": Case(says="fails as a member of a chord"),
    "body": Case(says="is the body of that chord", ends=False),
    "waits": Case(says="waits ten minutes for its retry", ends=False),
}
CHORD = ("member", "body")
REVOKED = "revoked"
