"""The records of a test: one line for each event of its tasks, in one file to which all processes append."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


Event = Literal["sent", "called", "retried", "dead", "ended"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One event of one message of a task."""

    #: "sent" to a queue, or "called" without one: eager.
    event: Event
    task: str
    task_id: str
    attempt: int = 1
    #: Of a retry: what was decided, and not what was waited.
    delay_ms: int = 0
    #: Of a dead letter its reason, of an end Celery's state.
    reason: str = ""
    error: str = ""


def append_line(path: str | Path, facts: Mapping[str, Any]) -> None:
    """Append one line of JSON. It is one write(): lines of several processes do not mix, and a SIGKILL cuts none."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(file, json.dumps(facts).encode() + b"\n")
    finally:
        os.close(file)


class RecordFile:
    """The records of a test, oldest first."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._refusal = path.with_suffix(".refusal")
        path.touch()

    def add(self, event: Event, task: str, task_id: str, **facts: Any) -> None:
        """Append a record."""
        append_line(self.path, asdict(Record(event=event, task=task, task_id=task_id, **facts)))

    def refuse(self, problem: str) -> None:
        """Write down what a task was not allowed to do, however the task ends."""
        self._refusal.write_text(problem)

    @property
    def refusal(self) -> str:
        """Return the last of these problems; empty without one."""
        return self._refusal.read_text() if self._refusal.exists() else ""

    def read(self) -> list[Record]:
        """Return all records."""
        whole = self.path.read_text().rpartition("\n")[0]  # a reader may see the first half of a line
        return [Record(**json.loads(line)) for line in whole.splitlines()]
