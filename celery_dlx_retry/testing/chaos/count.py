"""The count of a chaos run: by task id, from what the tasks wrote and what lies in the dead-letter queue."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class End:
    """A task was done, or died, at this Unix time; ``reason`` is why it died."""

    id: str
    at: float
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """Where every task that went in has ended."""

    sent: int
    done: int
    dead: int
    lost: tuple[str, ...]
    duplicates: int
    #: Those with a crash of the broker between the two ends: it may have forgotten an acknowledgement.
    over_a_crash: int

    @property
    def line(self) -> str:
        """The one line."""
        return (
            f"{self.sent} in = {self.done} done + {self.dead} dead, {len(self.lost)} lost, {self.duplicates} duplicates"
        )


def count(sent: Iterable[str], *, done: Iterable[End], dead: Iterable[End], crashes: Collection[float] = ()) -> Count:
    """Count ids. A task that is both done and dead is done, and one duplicate; so is every end beyond the first.

    ``crashes`` are the times at which the broker was killed.
    """
    ids = set(sent)
    done_at, dead_at = _times(done), _times(dead)
    duplicates = over_a_crash = 0
    for one in ids:
        for before, after in pairwise(sorted(done_at[one] + dead_at[one])):
            duplicates += 1
            over_a_crash += any(before <= crash <= after for crash in crashes)
    return Count(
        sent=len(ids),
        done=sum(1 for one in ids if done_at[one]),
        dead=sum(1 for one in ids if dead_at[one] and not done_at[one]),
        lost=tuple(sorted(one for one in ids if not done_at[one] and not dead_at[one])),
        duplicates=duplicates,
        over_a_crash=over_a_crash,
    )


def _times(ends: Iterable[End]) -> defaultdict[str, list[float]]:
    times: defaultdict[str, list[float]] = defaultdict(list)
    for end in ends:
        times[end.id].append(end.at)
    return times


class Records:
    """What the tasks wrote so far; ``read`` reads on where it stopped."""

    def __init__(self, path: Path) -> None:
        path.touch()
        self._file = path.open("rb")
        self._rest = b""
        self.runs = 0
        self.done: list[End] = []
        self.done_ids: set[str] = set()
        #: The last record of a task.
        self.last: dict[str, dict[str, Any]] = {}
        #: When each worker, by the pid of its main process, started its first task.
        self.working_since: dict[int, float] = {}

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def read(self) -> int:
        """Return how many records are new."""
        *lines, self._rest = (self._rest + self._file.read()).split(b"\n")
        for line in lines:
            record = json.loads(line)
            self.last[record["id"]] = record
            if record["event"] == "start":
                self.runs += 1
                self.working_since.setdefault(record["worker"], record["at"])
            else:
                self.done.append(End(record["id"], record["at"]))
                self.done_ids.add(record["id"])
        return len(lines)
