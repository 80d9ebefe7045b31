"""What became of a few that were replayed first.

Known are: *died again*, for it lies in a dead-letter queue again, replayed once more; *succeeded* or *failed*, if the
app has a result backend that keeps results by task id and the task stores its own. All else is *not known*: it may
wait in a lane for its next retry, run, or have succeeded without a word.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from celery_dlx_retry.broker.dead_letters import browse, depth

if TYPE_CHECKING:
    from kombu.connection import Connection

    from celery_dlx_retry.cli.dead.destinations import Destinations
    from celery_dlx_retry.cli.dead.states import States
    from celery_dlx_retry.deadletters.letter import DeadMessage

SUCCEEDED, DIED, FAILED, UNKNOWN = "succeeded", "died again", "failed", "not known"

_POLL_SECONDS = 0.2
# To look through a long queue costs the broker something: no more than a tenth of the time.
_REST_PER_LOOK = 9


def stores_no_result(app: Any, letter: DeadMessage) -> bool:
    """Whether the message or its task says ``ignore_result``."""
    told = letter.message.headers.get("ignore_result")
    if told is not None:
        return bool(told)
    task = app.tasks.get(letter.record.task)
    return bool(app.conf.task_ignore_result if task is None else task.ignore_result)


@dataclass(slots=True)
class Canaries:
    """Those that were sent ahead, with what was known of each before."""

    app: Any
    destination: Destinations
    #: None: the result backend cannot be asked.
    _states: States | None
    _replays: dict[str, int] = field(default_factory=dict)
    _stored: dict[str, Any] = field(default_factory=dict)
    _queues: set[str] = field(default_factory=set)
    outcomes: dict[str, str] = field(default_factory=dict)
    #: Those that will not store a result.
    mute: set[str] = field(default_factory=set)

    def remember(self, letter: DeadMessage) -> None:
        """Note how things are before it is replayed."""
        task_id = letter.record.task_id
        self._queues.add(self.destination.dead_letters(letter))
        self._replays[task_id] = letter.replays
        self._stored[task_id] = self._result(task_id)
        self.outcomes[task_id] = UNKNOWN
        if stores_no_result(self.app, letter):
            self.mute.add(task_id)

    @property
    def ids(self) -> frozenset[str]:
        """Their task ids."""
        return frozenset(self.outcomes)

    def wait(self, connection: Connection, *, seconds: float) -> Counter[str]:
        """Until all outcomes are known, or time is up; returns how many had which."""
        deadline = time.monotonic() + seconds
        next_look = 0.0
        depths: dict[str, int | None] = {}
        while True:
            self._ask_results()
            now = time.monotonic()
            is_last = now >= deadline
            found = {queue: depth(connection, queue) for queue in self._queues}
            if is_last or (now >= next_look and found != depths):
                self._look(connection)
                depths, next_look = found, time.monotonic() + _REST_PER_LOOK * (time.monotonic() - now)
            if is_last or UNKNOWN not in self.outcomes.values():
                return Counter(self.outcomes.values())
            time.sleep(min(_POLL_SECONDS, max(0.0, deadline - time.monotonic())))  # noqa: TID251 - between two looks

    def _look(self, connection: Connection) -> None:
        for queue in self._queues:
            if depth(connection, queue) is None:
                continue
            for letter in browse(connection, queue):
                task_id = letter.record.task_id
                if task_id in self.outcomes and letter.replays > self._replays[task_id]:
                    self.outcomes[task_id] = DIED

    def _ask_results(self) -> None:
        for task_id, outcome in self.outcomes.items():
            result = self._result(task_id)
            if outcome != UNKNOWN or result is None or result == self._stored[task_id]:
                continue
            if result[0] == "SUCCESS":
                self.outcomes[task_id] = SUCCEEDED
            elif result[0] in {"FAILURE", "REVOKED"}:
                self.outcomes[task_id] = FAILED

    def _result(self, task_id: str) -> tuple[str, str] | None:
        return self._states(task_id) if self._states else None
