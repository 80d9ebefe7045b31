"""Count dead letters by fingerprint, in constant memory for each group."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from celery_dlx_retry.deadletters.fingerprint import Fingerprint
    from celery_dlx_retry.deadletters.letter import DeadMessage


_BARS = "▁▂▃▄▅▆▇█"
_MOST_SPANS = 240


class Histogram:
    """Counts times in spans of a minute. If there are too many spans, each becomes twice as long."""

    def __init__(self) -> None:
        self._span_ms = 60_000
        self._counts: Counter[int] = Counter()

    def add(self, at_ms: int) -> None:
        """Count one time; ignore one that is not known."""
        if at_ms:
            self._counts[at_ms // self._span_ms] += 1
            while len(self._counts) > _MOST_SPANS:
                self._span_ms *= 2
                halves, self._counts = self._counts, Counter()
                for span, count in halves.items():
                    self._counts[span // 2] += count

    def since(self, start_ms: int) -> int:
        """Return how many times are in spans that begin then or later, or in the span of that time."""
        return sum(count for span, count in self._counts.items() if span >= start_ms // self._span_ms)

    def trend(self, first_ms: int, last_ms: int, *, width: int = 12) -> str:
        """Return a row of bars: how many times between these two, the highest bar for the most."""
        step = max(self._span_ms, -(-(last_ms + 1 - first_ms) // width))
        heights = [0] * width
        for span, count in self._counts.items():
            place = (span * self._span_ms - first_ms) // step
            heights[min(max(place, 0), width - 1)] += count
        most = max(heights)
        return "".join(_BARS[-(-it * (len(_BARS) - 1) // most)] if it else " " for it in heights)


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
    #: Work queues.
    queues: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    deaths: Histogram = field(default_factory=Histogram)

    def add(self, letter: DeadMessage) -> None:
        """Count one more letter."""
        record = letter.record
        at_ms = record.died_at_ms
        self.count += 1
        self.tasks[record.task] += 1
        self.queues[record.queue] += 1
        self.reasons[str(record.reason)] += 1
        self.deaths.add(at_ms)
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
            "queues": dict(self.queues),
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
