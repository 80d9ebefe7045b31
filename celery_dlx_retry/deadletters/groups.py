"""Count dead letters by fingerprint, in constant memory for each group."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from celery_dlx_retry.deadletters.fingerprint import Fingerprint
    from celery_dlx_retry.deadletters.letter import DeadMessage


@dataclass(slots=True, kw_only=True)
class Group:
    """The counts of the letters of one fingerprint; the newest letter is the sample."""

    fingerprint: Fingerprint
    count: int = 0
    first_ms: int = 0
    last_ms: int = 0
    sample_id: str = ""
    sample_error: str = ""
    tasks: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)

    def add(self, letter: DeadMessage) -> None:
        """Count one more letter."""
        record = letter.record
        at_ms = record.died_at_ms
        self.count += 1
        self.tasks[record.task] += 1
        self.reasons[str(record.reason)] += 1
        if at_ms and (not self.first_ms or at_ms < self.first_ms):
            self.first_ms = at_ms
        if at_ms >= self.last_ms:
            self.last_ms = at_ms
            self.sample_id, self.sample_error = record.task_id, record.error

    @property
    def facts(self) -> dict[str, Any]:
        """Return the fields for ``--json``."""
        return {
            "group": self.fingerprint.group,
            "count": self.count,
            "error_type": self.fingerprint.error,
            "where": self.fingerprint.where,
            "first_died_at_ms": self.first_ms,
            "last_died_at_ms": self.last_ms,
            "sample_id": self.sample_id,
            "sample_error": self.sample_error,
            "tasks": dict(self.tasks),
            "reasons": dict(self.reasons),
        }


def grouped(letters: Iterable[DeadMessage]) -> list[Group]:
    """Return the groups of these letters, the largest first."""
    groups: dict[Fingerprint, Group] = {}
    for letter in letters:
        key = letter.fingerprint
        if key not in groups:
            groups[key] = Group(fingerprint=key)
        groups[key].add(letter)
    return sorted(groups.values(), key=lambda group: (-group.count, group.fingerprint.group))
