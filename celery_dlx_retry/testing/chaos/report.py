"""What a chaos run found out, for people and for machines."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from celery_dlx_retry.testing.chaos import names as chaos_names
from celery_dlx_retry.testing.chaos.count import Count, count

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from celery_dlx_retry.testing.chaos.plan import Plan
    from celery_dlx_retry.testing.chaos.run import Run

SHOWN_IDS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The count, and what was done to get there."""

    plan: Plan
    count: Count
    runs: int
    reasons: Mapping[str, int]
    kills: int
    restarts: int
    #: Workers that nobody killed.
    ended: int
    sent_again: int
    #: How many tasks ran at most when something was broken: each may have come to two ends.
    in_flight: int
    seconds: float
    is_in_time: bool
    #: The broker had no time to write down what it knew.
    has_crashed: bool
    #: Lost ones that still wait in the broker: the time was too short.
    waiting: frozenset[str]
    last_records: Mapping[str, Any]

    def rows(self) -> dict[str, object]:
        """The small table."""
        rows: dict[str, object] = {
            "runs": self.runs,
            "dead letters": ", ".join(f"{reason} {number}" for reason, number in sorted(self.reasons.items()))
            or "none",
            "worker kills": f"{self.kills} of {self.plan.kills}",
            "broker restarts": f"{self.restarts} of {self.plan.restarts}",
            "in flight at them": f"{self.in_flight} at most",
            "duplicates": f"{self.count.duplicates}, {self.count.over_a_crash} of them over a kill of the broker",
            "sent again": self.sent_again,
            "seconds": f"{self.seconds:.0f}",
        }
        if self.ended:
            rows["ended by themselves"] = f"{self.ended} workers"
        if not self.is_in_time:
            rows["time is up"] = f"{self.count.sent} of {self.plan.tasks} sent, {len(self.waiting)} of them still wait"
        return rows

    def losses(self) -> Iterator[str]:
        """A line about each that is lost, or about the first of them."""
        for one in self.count.lost[:SHOWN_IDS]:
            where = "still waits in the broker" if one in self.waiting else "gone"
            yield f"lost: {one}, {where}, last record {self.last_records.get(one, 'none')}"
        if len(self.count.lost) > SHOWN_IDS:
            yield f"… and {len(self.count.lost) - SHOWN_IDS} more"
        if self.has_crashed and len(self.count.lost) > len(self.waiting) and self.plan.lanes == "classic":
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
            "waiting_ids": sorted(self.waiting),
            "runs": self.runs,
            "dead_by_reason": dict(self.reasons),
            "kills": self.kills,
            "restarts": self.restarts,
            "ended_by_themselves": self.ended,
            "sent_again": self.sent_again,
            "in_flight": self.in_flight,
            "seconds": round(self.seconds, 1),
            "seed": self.plan.seed,
            "is_in_time": self.is_in_time,
        }


def report_on(run: Run) -> Report:
    """Look at what a run has left: records, dead letters, and what still waits."""
    dead = run.dead()
    sent = (job.id for job in run.load[: run.sender.sent])
    result = count(sent, done=run.records.done, dead=dead, crashes=run.crashes)
    waiting: set[str] = set()
    if result.lost:
        waiting = chaos_names.waiting(run.url, run.names)
    return Report(
        plan=run.plan,
        count=result,
        runs=run.records.runs,
        reasons=Counter(end.reason for end in dead),
        kills=run.kills,
        restarts=run.restarts,
        ended=run.ended,
        sent_again=run.sender.sent_again,
        in_flight=run.in_flight,
        seconds=run.seconds,
        is_in_time=run.is_in_time,
        has_crashed=bool(run.crashes),
        waiting=frozenset(waiting.intersection(result.lost)),
        last_records=run.records.last,
    )
