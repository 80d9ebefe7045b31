"""Make the names of our exchanges and queues, and read such names."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from celery_dlx_retry.errors import InvalidSetting
from celery_dlx_retry.values.queue_names import NAME_BYTES

if TYPE_CHECKING:
    from celery_dlx_retry.settings import QueueType, Settings

_LANE_DIGITS = 12
#: The most bytes of the name of a lane, without the prefix and the name of the work queue.
_LANE_BYTES = len(f".v2.wait.quorum.max{'9' * 9}.{'0' * _LANE_DIGITS}-{'0' * _LANE_DIGITS}.")
#: How long a message stays in a landing queue: the shortest time that RabbitMQ allows.
LANDING_MS = 1

_KIND, _LENGTH = "(?P<kind>classic|quorum)", rf"\d{{{_LANE_DIGITS}}}"
_LANE = (
    rf"v2\.(?P<scope>wait|shared)\.{_KIND}\.(?:max\d+\.)?"
    rf"(?P<delay>{_LENGTH})(?:-(?P<expires>{_LENGTH}))?\.(?P<queue>.+)"
)
_OLD_LANE = rf"v1\.wait\.{_KIND}\.(?:max\d+\.)?(?P<delay>{_LENGTH})(?:\.(?P<expires>{_LENGTH}))?"
_RUNG = rf"v[12]\.ladder\.{_KIND}\.(?P<resolution>\d{{5}})\.(?P<number>\d{{2}})"
_LANDING = rf"v2\.(?P<scope>landing|shared-landing)\.{_KIND}\.(?P<queue>.+)"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkQueue:
    """A queue that workers consume."""

    name: str
    #: The key of its dead-letter queue: its name, or the alias of a broadcast queue, whose name is random.
    dead_letter_key: str = ""

    def __post_init__(self) -> None:
        if not self.dead_letter_key:
            object.__setattr__(self, "dead_letter_key", self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """A wait queue, read from its name: a lane, or a part of the ladder."""

    name: str
    kind: QueueType
    delay_ms: int
    #: The work queue whose messages wait here; empty if work queues share it: the routing key of a message names it.
    queue: str = ""
    #: A rung of the ladder, or a landing queue below it.
    is_rung: bool = False
    #: False: RabbitMQ deletes the lane when it is idle.
    stays: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """Makes every name on the broker. Names are API: the version in a name changes when an argument of it changes."""

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
        """Return the names for these settings."""
        return cls(
            prefix=settings.prefix,
            kind=settings.queue_type,
            dead_letter_queue=settings.dead_letter_queue,
            max_waiting=settings.max_waiting,
            bulkheads=settings.bulkheads,
        )

    def has_own_lanes(self, queue: WorkQueue) -> bool:
        """Return whether no other work queue uses its lanes.

        The copies of a broadcast queue share lanes: their names are random, and unused lanes would pile up. A queue
        with a very long name uses the names of shared lanes, but shares them with no other queue.
        """
        has_room = len(f"{self.prefix}{queue.name}".encode()) + _LANE_BYTES <= NAME_BYTES
        return self.bulkheads is None and queue.dead_letter_key == queue.name and has_room

    def lanes(self) -> str:
        """Return the direct exchange of all lanes that have one work queue; routing key = the lane."""
        return f"{self.prefix}.v2.wait"

    def lane(self, queue: WorkQueue, delay_ms: int, *, expires_ms: int = 0) -> str:
        """Return the wait queue in which messages of this work queue wait that long.

        If work queues share it, its fanout exchange has the same name.
        """
        scope, label = ("wait", queue.name) if self.has_own_lanes(queue) else ("shared", self._bulkhead(queue))
        limit = "" if self.max_waiting is None else f"max{self.max_waiting}."
        length = f"{delay_ms:0{_LANE_DIGITS}d}"
        if expires_ms:
            length += f"-{delay_ms + expires_ms:0{_LANE_DIGITS}d}"
        return f"{self.prefix}.v2.{scope}.{self.kind}.{limit}{length}.{label}"

    def rung(self, resolution_ms: int, number: int) -> str:
        """Return the name of a rung's exchange and wait queue."""
        return f"{self.prefix}.v2.ladder.{self.kind}.{resolution_ms:05d}.{number:02d}"

    def landings(self) -> str:
        """Return the direct exchange below the lowest rung; routing key = the work queue."""
        return f"{self.prefix}.v2.landing.{self.kind}"

    def landing(self, queue: WorkQueue) -> str:
        """Return the queue through which messages of this work queue leave the ladder."""
        is_own = self.has_own_lanes(queue)
        scope, label = ("landing", queue.name) if is_own else ("shared-landing", self._bulkhead(queue))
        return f"{self.prefix}.v2.{scope}.{self.kind}.{label}"

    def lane_of(self, name: str) -> Lane | None:
        """Return the lane or rung with this name, also of other settings; None if it is not ours."""
        if not name.startswith(f"{self.prefix}."):
            return None
        tail = name.removeprefix(f"{self.prefix}.")
        if match := _matched(_LANE, tail) or _matched(_OLD_LANE, tail):
            facts = match.groupdict()
            return Lane(
                name=name,
                kind=_kind(facts["kind"]),
                delay_ms=int(facts["delay"]),
                queue=facts["queue"] if facts.get("scope") == "wait" else "",
                stays=not facts["expires"],
            )
        if match := _matched(_RUNG, tail):
            delay_ms = int(match["resolution"]) << int(match["number"])
            return Lane(name=name, kind=_kind(match["kind"]), delay_ms=delay_ms, is_rung=True)
        if match := _matched(_LANDING, tail):
            queue = match["queue"] if match["scope"] == "landing" else ""
            return Lane(name=name, kind=_kind(match["kind"]), delay_ms=LANDING_MS, queue=queue, is_rung=True)
        return None

    def lock(self) -> str:
        """Return the exclusive queue that a process holds while it binds or deletes lanes; see broker/lanes.py."""
        return f"{self.prefix}.v2.lock"

    def return_exchange(self) -> str:
        """Return the exchange through which messages go back to their work queue after the wait."""
        return f"{self.prefix}.v1.return.{self.kind}"

    def is_return_exchange(self, exchange: str) -> bool:
        """Return whether it is a return exchange of this prefix, of either type and any version."""
        return _matched(rf"{re.escape(self.prefix)}\.v\d+\.return\..+", exchange) is not None

    def orphans(self) -> str:
        """Return the alternate exchange of the return exchange; its queue has the same name."""
        return f"{self.prefix}.v1.orphans.{self.kind}"

    def dead(self) -> str:
        """Return the dead-letter exchange; routing key = the work queue's ``dead_letter_key``."""
        return f"{self.prefix}.v1.dead"

    def crash_marks(self, digest: str) -> str:
        """Return the queue for the crash marks of one message; see broker/crash_marks.py."""
        return f"{self.prefix}.v1.starts.{digest}"

    def dead_letters(self, dead_letter_key: str) -> str:
        """Return the dead-letter queue of the work queues with this key."""
        name = self.dead_letter_queue.replace("{queue}", dead_letter_key)
        # If the dead letters went into the work queue, workers would run them again without end.
        if name == dead_letter_key or len(name.encode()) > NAME_BYTES:
            raise InvalidSetting(
                setting="dlx_dead_letter_queue",
                value=self.dead_letter_queue,
                wanted=f"a pattern that makes another name, of at most {NAME_BYTES} bytes, of {dead_letter_key!r}",
            )
        return name

    def _bulkhead(self, queue: WorkQueue) -> str:
        """Return which shared set of lanes a work queue uses. Every process computes it from the name of the queue."""
        import hashlib  # noqa: PLC0415 - few apps share lanes, and it loads OpenSSL

        digest = hashlib.sha256(queue.dead_letter_key.encode()).hexdigest()
        return digest[:16] if self.bulkheads is None else f"{int(digest, 16) % self.bulkheads:03d}"


def is_orphan_exchange(exchange: str) -> bool:
    """Return whether orphans come from this exchange: it is a return exchange, or belongs to the ladder."""
    return any(part in exchange for part in (".v1.return.", ".v1.ladder.", ".v2.ladder.", ".v2.landing."))


def work_queue_of(wait_queue: str, routing_key: str) -> str:
    """Return the work queue of a message that waited in this queue under this routing key; empty if it is not ours."""
    match = _matched(rf".+?\.(?:{_LANE})", wait_queue)
    if match and match["scope"] == "wait":
        return match["queue"]
    is_ours = match or any(part in wait_queue for part in (".v1.wait.", ".v1.ladder.", ".v2.ladder.", "landing."))
    return routing_key if is_ours else ""


def _matched(pattern: str, text: str) -> re.Match[str] | None:
    """Match the whole text. The pattern is compiled at the first use: processes that only send need none."""
    return re.fullmatch(pattern, text, re.ASCII | re.DOTALL)


def _kind(text: str) -> QueueType:
    return "quorum" if text == "quorum" else "classic"
