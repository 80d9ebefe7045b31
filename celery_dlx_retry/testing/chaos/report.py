"""The count of a chaos run, by task id, from what the tasks wrote and what is on the broker; and its report."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from amqp.exceptions import AMQPError
from kombu.connection import Connection

from celery_dlx_retry.app.context import context_of
from celery_dlx_retry.broker.crash_marks import marks_of
from celery_dlx_retry.broker.dead_letters import browse
from celery_dlx_retry.errors import Missing
from celery_dlx_retry.settings import Settings
from celery_dlx_retry.testing.chaos.project import app, queue_name
from celery_dlx_retry.topology.names import WorkQueue
from celery_dlx_retry.topology.objects import shared_objects, work_queue_objects
from celery_dlx_retry.topology.worker_objects import possible_wait_queues

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator
    from pathlib import Path

    from celery_dlx_retry.testing.chaos.run import Run
    from celery_dlx_retry.topology.names import Names


SHOWN_IDS = 20


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


def lanes_of(names: Names) -> set[str]:
    """Return the lanes that workers may use: the announced lanes, and every other lane of the grid."""
    queues = [WorkQueue(name=queue_name(names.prefix))]
    return possible_wait_queues(names, Settings(), queues, context_of(app).exact_lanes)


def waiting(url: str, names: Names) -> set[str]:
    """Ids of the tasks that are still in the work queue or in a lane."""
    found: set[str] = set()
    with Connection(url) as connection:
        for queue in (queue_name(names.prefix), *lanes_of(names)):
            try:
                found.update(str(it.message.headers.get("id")) for it in browse(connection, queue))
            except Missing:  # noqa: PERF203 - most lanes were never needed
                continue
            except AMQPError:  # a queue that is there and does not answer
                connection.collect()
    return found


def delete(url: str, names: Names, task_ids: Iterable[str]) -> None:
    """Leave a broker as it was before the run. RabbitMQ does not mind when there is nothing to delete."""
    queue = queue_name(names.prefix)
    others = shared_objects(names) | work_queue_objects(names, WorkQueue(name=queue))
    queues = {queue, *lanes_of(names), *(one.name for one in others.queues)}
    exchanges = {queue, *lanes_of(names), *(one.name for one in others.exchanges)}
    with Connection(url) as connection:
        connection.ensure_connection(max_retries=10)
        with closing(connection.channel()) as channel:
            for name in queues | {marks_of(names, task_id, queue=queue).name for task_id in task_ids}:
                channel.queue_delete(name, nowait=True)
            for name in exchanges:
                channel.exchange_delete(name, nowait=True)


class Report:
    """The count of a run that is over, and what the run did."""

    def __init__(self, run: Run) -> None:
        self._run, self._plan = run, run.plan
        dead = run.dead()
        sent = (job.id for job in run.load[: run.sender.sent])
        self.count: Count = count(sent, done=run.records.done, dead=dead, crashes=run.crashes)
        self._reasons = Counter(end.reason for end in dead)
        #: Lost ones that still wait in the broker: the time was too short.
        self._waiting: set[str] = set()
        if self.count.lost:
            self._waiting = waiting(run.url, run.names).intersection(self.count.lost)

    def rows(self) -> dict[str, object]:
        """The small table."""
        rows: dict[str, object] = {
            "runs": self._run.records.runs,
            "dead letters": ", ".join(f"{reason} {number}" for reason, number in sorted(self._reasons.items()))
            or "none",
            "worker kills": f"{self._run.kills} of {self._plan.kills}",
            "broker restarts": f"{self._run.restarts} of {self._plan.restarts}",
            "in flight at them": f"{self._run.in_flight} at most",
            "duplicates": f"{self.count.duplicates}, {self.count.over_a_crash} of them over a kill of the broker",
            "sent again": self._run.sender.sent_again,
            "seconds": f"{self._run.seconds:.0f}",
        }
        if self._run.ended:
            rows["ended by themselves"] = f"{self._run.ended} workers"
        if not self._run.is_in_time:
            rows["time is up"] = (
                f"{self.count.sent} of {self._plan.tasks} sent, {len(self._waiting)} of them still wait"
            )
        return rows

    def losses(self) -> Iterator[str]:
        """A line about each that is lost, or about the first of them."""
        for one in self.count.lost[:SHOWN_IDS]:
            where = "still waits in the broker" if one in self._waiting else "gone"
            yield f"lost: {one}, {where}, last record {self._run.records.last.get(one, 'none')}"
        if len(self.count.lost) > SHOWN_IDS:
            yield f"… and {len(self.count.lost) - SHOWN_IDS} more"
        if self._run.crashes and len(self.count.lost) > len(self._waiting) and self._plan.lanes == "classic":
            yield (
                "The broker was killed, and the lanes are classic: RabbitMQ loses then what they have just returned. "
                "Quorum lanes keep it (--lanes quorum, dlx_queue_type); see docs/chaos.md."
            )

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            "in": self.count.sent,
            "done": self.count.done,
            "dead": self.count.dead,
            "lost": len(self.count.lost),
            "duplicates": self.count.duplicates,
            "duplicates_over_a_crash": self.count.over_a_crash,
            "line": self.count.line,
            "lost_ids": list(self.count.lost),
            "waiting_ids": sorted(self._waiting),
            "runs": self._run.records.runs,
            "dead_by_reason": dict(self._reasons),
            "kills": self._run.kills,
            "restarts": self._run.restarts,
            "ended_by_themselves": self._run.ended,
            "sent_again": self._run.sender.sent_again,
            "in_flight": self._run.in_flight,
            "seconds": round(self._run.seconds, 1),
            "seed": self._plan.seed,
            "is_in_time": self._run.is_in_time,
        }
