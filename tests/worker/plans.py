"""Tasks of ``project_fire.py`` whose ends are planned, and what became of them."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from support import eventually

if TYPE_CHECKING:
    from harness import Project


class Plans:
    """What was sent, by task id, and how each is to end: "done" or "dead"."""

    def __init__(self, project: Project) -> None:
        self._project = project
        self._ends: dict[str, str] = {}
        # What the broker has not confirmed to the sender may be lost with it, before we have anything to keep.
        conf, project.conf = project.conf, {**project.conf, "broker_transport_options": {"confirm_publish": True}}
        self._sender, project.conf = project.app, conf

    def send(self, end: str, **kwargs: Any) -> str:
        task_id: str = self._project.send("plan", end, app=self._sender, kwargs=kwargs).id
        self._ends[task_id] = end
        return task_id

    def wait(self, *, within: float = 90) -> None:
        """Until each has come to its end."""
        eventually(lambda: self._planned("done") <= self._done().keys(), within=within)
        eventually(lambda: self._planned("dead") <= self._dead().keys(), within=within)

    def assert_ended_as_planned(self, *, extra_ends: int) -> int:
        """None is lost, none ended as it should not; and so many ends at most are one too many. Returns how many."""
        done, dead = self._done(), self._dead()
        assert done.keys() == self._planned("done")
        assert dead.keys() == self._planned("dead")
        assert {letter.record.reason for letter in self._project.dead()} <= {"failed"}
        extra = (done + dead).total() - len(self._ends)
        twice = {task_id for task_id, times in (done + dead).items() if times > 1}
        assert extra <= extra_ends, [row for row in self._project.records() if row["id"] in twice]
        return extra

    def _planned(self, end: str) -> set[str]:
        return {task_id for task_id, planned in self._ends.items() if planned == end}

    def _done(self) -> Counter[str]:
        return Counter(row["id"] for row in self._project.records(event="done"))

    def _dead(self) -> Counter[str]:
        return Counter(letter.record.task_id for letter in self._project.dead())
