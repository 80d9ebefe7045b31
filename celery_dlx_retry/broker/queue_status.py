"""The status of our queues and of the work queues: how many messages they hold, and since when."""

from __future__ import annotations

from contextlib import closing, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from celery_dlx_retry.broker.counts import Counts, counts
from celery_dlx_retry.broker.peek import peek
from celery_dlx_retry.broker.waiting import waiting
from celery_dlx_retry.errors import Forbidden, QueueBusy
from celery_dlx_retry.wire.dead_record import record_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from kombu.connection import Connection

    from celery_dlx_retry.broker.management import Management
    from celery_dlx_retry.settings import QueueType
    from celery_dlx_retry.topology.names import Lane, Names, WorkQueue

# To see the first message of a quorum queue, or the next one of a rung, we must read the whole queue. We do not hold
# more messages than this.
_CHEAP = 1_000


Role = Literal["work", "wait", "dead", "orphans"]
_ROLES: tuple[Role, ...] = ("work", "wait", "dead", "orphans")


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueState:
    """One queue. None means not known: the HTTP API does not answer, or the queue does not exist."""

    role: Role
    queue: str
    type: QueueType | None
    exists: bool
    ready: int
    consumers: int
    unacked: int | None = None
    in_per_second: float | None = None
    #: Only for work queues. From the others only commands read, and give back; expiry is not in this count.
    out_per_second: float | None = None
    #: When the first message came to work, began to wait, or died; ms since 1970.
    oldest_ms: int | None = None
    #: When the next one of a lane goes back to work.
    next_ms: int | None = None


def states(  # noqa: PLR0913 - the queues by role, and the sources
    connection: Connection,
    names: Names,
    *,
    work_queues: Mapping[WorkQueue, QueueType | None],
    lanes: Iterable[Lane],
    others: Iterable[tuple[Role, str, QueueType]] = (),
    management: Management | None,
) -> Iterator[QueueState]:
    """Yield the state of work queues (with their types), lanes, dead-letter queues, orphans and ``others``."""
    by_lane = {lane.name: lane for lane in lanes}
    known: list[tuple[Role, str, QueueType | None]] = [
        *(("work", queue.name, kind) for queue, kind in work_queues.items()),
        *(("wait", lane.name, lane.kind) for lane in by_lane.values()),
        *(("dead", names.dead_letters(queue.dead_letter_key), names.kind) for queue in work_queues),
        ("orphans", names.orphans(), names.kind),
    ]
    roles: dict[tuple[Role, str], QueueType | None] = {}
    for role, name, kind in sorted((*known, *sorted(others)), key=lambda it: _ROLES.index(it[0])):
        roles.setdefault((role, name), kind)
    api_counts = management.queues() if management else {}
    found = _counts(connection, {name for _, name in roles}, api_counts)
    for (role, name), kind in roles.items():
        counted = found.get(name, Counts(0, 0))
        oldest_ms = next_ms = None
        if role == "work":
            at = api_counts.get(name, {}).get("head_message_timestamp")
            oldest_ms = None if at is None else at * 1000
        elif kind is not None and name in found and _is_cheap(found[name], kind, by_lane.get(name)):
            with suppress(QueueBusy, Forbidden):
                oldest_ms, next_ms = _first(connection, name, kind, by_lane.get(name))
        yield QueueState(
            role=role,
            queue=name,
            type=kind,
            exists=name in found,
            ready=counted.ready,
            consumers=counted.consumers,
            oldest_ms=oldest_ms,
            next_ms=next_ms,
            **_from_api(api_counts.get(name, {}), role),
        )


def oldest_dead_letter_ms(connection: Connection, name: str, kind: QueueType) -> int | None:
    """Return when the first letter of a dead-letter queue died, in ms since 1970; None if that is not known.

    This reads messages and gives them back. It does not read a long quorum queue, or one that another process reads.
    """
    counted = counts(connection, [name]).get(name)
    if counted is None or not _is_cheap(counted, kind, None):
        return None
    with suppress(QueueBusy, Forbidden):
        return _first(connection, name, kind, None)[0]
    return None


def _counts(
    connection: Connection, names: Iterable[str], api_counts: Mapping[str, dict[str, Any]]
) -> dict[str, Counts]:
    """Return what is in these queues. The HTTP API counts those that this user has no permission on."""
    with suppress(Forbidden):
        return counts(connection, names)
    found: dict[str, Counts] = {}
    for name in names:
        try:
            found |= counts(connection, [name])
        except Forbidden:  # noqa: PERF203 - each may be refused by itself
            if name not in api_counts:
                raise
            facts = api_counts[name]
            ready = facts.get("messages", 0) - facts.get("messages_unacknowledged", 0)
            found[name] = Counts(ready=max(0, ready), consumers=facts.get("consumers", 0))
    return found


def _is_cheap(counted: Counts, kind: QueueType, lane: Lane | None) -> bool:
    is_whole = kind == "quorum" or (lane is not None and lane.is_rung)
    return counted.ready > 0 and (not is_whole or counted.ready <= _CHEAP)


def _first(connection: Connection, name: str, kind: QueueType, lane: Lane | None) -> tuple[int | None, int | None]:
    if lane is not None:
        with closing(waiting(connection, lane, limit=1)) as tasks:  # a finalizer would swallow Ctrl-C
            for task in tasks:
                return task.since_ms, task.due_ms
        return None, None
    with peek(connection, name, kind=kind, limit=1) as messages:
        for seen in messages:
            record = record_of(seen.message.headers)
            return (record.died_at_ms or None if record else None), None
    return None, None


def _from_api(facts: dict[str, Any], role: Role) -> dict[str, Any]:
    if not facts:
        return {}
    rates = facts.get("message_stats", {})
    return {
        "unacked": facts.get("messages_unacknowledged"),
        "in_per_second": rates.get("publish_details", {}).get("rate", 0.0),
        "out_per_second": rates.get("deliver_get_details", {}).get("rate", 0.0) if role == "work" else None,
    }
