"""The names that we give to exchanges and queues, and what can be read from such a name."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from celery_dlx_retry.errors import InvalidSetting

if TYPE_CHECKING:
    from celery_dlx_retry.settings import QueueType, Settings

_NAME_BYTES = 255  # an AMQP short string
_LANE_DIGITS = 12
#: Bytes that the name of a lane has at most, without the prefix and the name of the work queue.
_LANE_BYTES = len(f".v2.wait.quorum.max{'9' * 9}.{'0' * _LANE_DIGITS}-{'0' * _LANE_DIGITS}.")
#: How long a message stays in a landing queue: as short as RabbitMQ lets it.
LANDING_MS = 1

_KIND, _LENGTH = "(?P<kind>classic|quorum)", rf"\d{{{_LANE_DIGITS}}}"
_LANE = re.compile(
    rf"v2\.(?P<way>wait|shared)\.{_KIND}\.(?:max\d+\.)?(?P<delay>{_LENGTH})(?:-(?P<expires>{_LENGTH}))?\.(?P<queue>.+)",
    re.ASCII | re.DOTALL,
)
_OLD_LANE = re.compile(rf"v1\.wait\.{_KIND}\.(?:max\d+\.)?(?P<delay>{_LENGTH})(?:\.(?P<expires>{_LENGTH}))?", re.ASCII)
_RUNG = re.compile(rf"v[12]\.ladder\.{_KIND}\.(?P<resolution>\d{{5}})\.(?P<number>\d{{2}})", re.ASCII)
_LANDING = re.compile(rf"v2\.(?P<way>landing|shared-landing)\.{_KIND}\.(?P<queue>.+)", re.ASCII | re.DOTALL)
_RETURN = re.compile(r"v\d+\.return\..+", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkQueue:
    """A queue that workers consume from, as far as we need to know it."""

    name: str
    #: Whose dead letters its own belong to: its name, or the alias of a broadcast queue whose name is random.
    dead_letter_key: str = ""

    def __post_init__(self) -> None:
        if not self.dead_letter_key:
            object.__setattr__(self, "dead_letter_key", self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """A wait queue, read from its name: a lane that stays or expires, or a part of the ladder."""

    name: str
    kind: QueueType
    delay_ms: int
    #: The work queue whose messages wait here; empty if work queues share it: the routing key of a message names it.
    queue: str = ""
    #: A rung of the ladder, or a landing queue below it.
    is_rung: bool = False
    stays: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """Every name on the broker is a function of these, and API: the version in it changes when any argument does."""

    prefix: str = "dlx"
    #: The type of lanes, orphans and dead-letter queues.
    kind: QueueType = "quorum"
    dead_letter_queue: str = "{queue}.dead"
    #: How many messages a lane may hold.
    max_waiting: int | None = None
    #: How many sets of lanes the work queues share. None: each work queue has its own.
    bulkheads: int | None = None

    @classmethod
    def of(cls, settings: Settings) -> Names:
        """The names that these settings lead to."""
        return cls(
            prefix=settings.prefix,
            kind=settings.queue_type,
            dead_letter_queue=settings.dead_letter_queue,
            max_waiting=settings.max_waiting,
            bulkheads=settings.bulkheads,
        )

    def has_own_lanes(self, queue: WorkQueue) -> bool:
        """Return whether no other work queue uses its lanes.

        The copies of a broadcast queue share theirs: their names are random, and lanes would pile up. A queue with a
        name that is too long shares lanes in name only.
        """
        has_room = len(f"{self.prefix}{queue.name}".encode()) + _LANE_BYTES <= _NAME_BYTES
        return self.bulkheads is None and queue.dead_letter_key == queue.name and has_room

    def lanes(self) -> str:
        """The direct exchange that leads to all lanes with one work queue; routing key = the lane."""
        return f"{self.prefix}.v2.wait"

    def lane(self, queue: WorkQueue, delay_ms: int, *, expires_ms: int = 0) -> str:
        """The wait queue in which messages of this work queue wait that long.

        If work queues share it, this is also the name of the fanout exchange that leads to it.
        """
        way, label = ("wait", queue.name) if self.has_own_lanes(queue) else ("shared", self._bulkhead(queue))
        limit = "" if self.max_waiting is None else f"max{self.max_waiting}."
        length = f"{delay_ms:0{_LANE_DIGITS}d}"
        if expires_ms:
            length += f"-{delay_ms + expires_ms:0{_LANE_DIGITS}d}"
        return f"{self.prefix}.v2.{way}.{self.kind}.{limit}{length}.{label}"

    def rung(self, resolution_ms: int, number: int) -> str:
        """The exchange of a rung of the ladder, and its wait queue."""
        return f"{self.prefix}.v2.ladder.{self.kind}.{resolution_ms:05d}.{number:02d}"

    def landings(self) -> str:
        """The direct exchange below the lowest rung; routing key = the work queue."""
        return f"{self.prefix}.v2.landing.{self.kind}"

    def landing(self, queue: WorkQueue) -> str:
        """The queue through which messages of this work queue leave the ladder."""
        way, label = ("landing", queue.name) if self.has_own_lanes(queue) else ("shared-landing", self._bulkhead(queue))
        return f"{self.prefix}.v2.{way}.{self.kind}.{label}"

    def lane_of(self, name: str) -> Lane | None:
        """Return the lane or rung with this name, also if made under other settings; None if it is not ours."""
        if not name.startswith(f"{self.prefix}."):
            return None
        tail = name.removeprefix(f"{self.prefix}.")
        if found := _LANE.fullmatch(tail) or _OLD_LANE.fullmatch(tail):
            facts = found.groupdict()
            return Lane(
                name=name,
                kind=_kind(facts["kind"]),
                delay_ms=int(facts["delay"]),
                queue=facts["queue"] if facts.get("way") == "wait" else "",
                stays=not facts["expires"],
            )
        if found := _RUNG.fullmatch(tail):
            delay_ms = int(found["resolution"]) << int(found["number"])
            return Lane(name=name, kind=_kind(found["kind"]), delay_ms=delay_ms, is_rung=True)
        if found := _LANDING.fullmatch(tail):
            queue = found["queue"] if found["way"] == "landing" else ""
            return Lane(name=name, kind=_kind(found["kind"]), delay_ms=LANDING_MS, queue=queue, is_rung=True)
        return None

    def lock(self) -> str:
        """The exclusive queue that a process holds while it binds or deletes lanes; see broker/lane_lock.py."""
        return f"{self.prefix}.v2.lock"

    def return_exchange(self) -> str:
        """The return exchange: what waited goes through it to its work queue."""
        return f"{self.prefix}.v1.return.{self.kind}"

    def is_return_exchange(self, exchange: str) -> bool:
        """Return whether it is a return exchange of this prefix, also of the other type or of another version."""
        ours, tail = exchange.startswith(f"{self.prefix}."), exchange.removeprefix(f"{self.prefix}.")
        return ours and _RETURN.fullmatch(tail) is not None

    def orphans(self) -> str:
        """The alternate exchange of the return exchange, and the queue behind it."""
        return f"{self.prefix}.v1.orphans.{self.kind}"

    def dead(self) -> str:
        """The dead-letter exchange; routing key = the work queue's ``dead_letter_key``."""
        return f"{self.prefix}.v1.dead"

    def crash_marks(self, digest: str) -> str:
        """The queue of marks of one suspect message; see broker/crash_marks.py."""
        return f"{self.prefix}.v1.starts.{digest}"

    def dead_letters(self, dead_letter_key: str) -> str:
        """The dead-letter queue of the work queues with this key."""
        name = self.dead_letter_queue.replace("{queue}", dead_letter_key)
        # A work queue that keeps its own dead letters would run them again, for ever.
        if name == dead_letter_key or len(name.encode()) > _NAME_BYTES:
            raise InvalidSetting(
                setting="dlx_dead_letter_queue",
                value=self.dead_letter_queue,
                wanted=f"a pattern that makes another name, of at most {_NAME_BYTES} bytes, of {dead_letter_key!r}",
            )
        return name

    def _bulkhead(self, queue: WorkQueue) -> str:
        """Which of the shared sets of lanes a work queue uses, by its name alone: every process finds the same."""
        digest = hashlib.sha256(queue.dead_letter_key.encode()).hexdigest()
        return digest[:16] if self.bulkheads is None else f"{int(digest, 16) % self.bulkheads:03d}"


def is_orphan_exchange(exchange: str) -> bool:
    """Return whether an orphan was published to this exchange: it leads back to work queues, or down the ladder."""
    return any(part in exchange for part in (".v1.return.", ".v1.ladder.", ".v2.ladder.", ".v2.landing."))


def work_queue_of(wait_queue: str, routing_key: str) -> str:
    """Return the work queue of a message that waited in this queue under this routing key; empty if it is not ours."""
    found = re.fullmatch(rf".+?\.(?:{_LANE.pattern})", wait_queue, re.ASCII | re.DOTALL)
    if found and found["way"] == "wait":
        return found["queue"]
    is_ours = found or any(part in wait_queue for part in (".v1.wait.", ".v1.ladder.", ".v2.ladder.", "landing."))
    return routing_key if is_ours else ""


def _kind(text: str) -> QueueType:
    return "quorum" if text == "quorum" else "classic"
