"""What a chaos run found out, for people and for machines."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from celery_dlx_retry.testing.chaos import names as chaos_names
from celery_dlx_retry.testing.chaos.count import Count, count

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_dlx_retry.testing.chaos.run import Run

SHOWN_IDS = 20


class Report:
    """The count of a run that is over, and what was done to get there."""

    def __init__(self, run: Run) -> None:
        self._run, self._plan = run, run.plan
        dead = run.dead()
        sent = (job.id for job in run.load[: run.sender.sent])
        self.count: Count = count(sent, done=run.records.done, dead=dead, crashes=run.crashes)
        self._reasons = Counter(end.reason for end in dead)
        #: Lost ones that still wait in the broker: the time was too short.
        self._waiting: set[str] = set()
        if self.count.lost:
            self._waiting = chaos_names.waiting(run.url, run.names).intersection(self.count.lost)

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
