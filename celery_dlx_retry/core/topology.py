"""Exchanges, queues and bindings as values, and the names and arguments that we give them."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from celery_dlx_retry.errors import InvalidSetting

if TYPE_CHECKING:
    from collections.abc import Iterable

    from celery_dlx_retry.core.settings import QueueType, Settings

Argument = tuple[str, "str | int"]

# RabbitMQ 4 deletes a message at its 21st return to a quorum queue, so that looking at it twenty times would lose it;
# -1 lifts the limit there, but on 3.x means "drop at the first return". A huge limit is safe on both
# (test_a_hundred_looks_leave_every_dead_letter_there,
# test_a_look_that_ends_with_a_lost_connection_leaves_every_dead_letter_there).
NO_DELIVERY_LIMIT = 1_000_000_000

_NAME_BYTES = 255  # an AMQP short string
_LANE_DIGITS = 12
_LANE = re.compile(
    rf"v1\.wait\.(classic|quorum)\.(?:max\d+\.)?(\d{{{_LANE_DIGITS}}})(?:\.(\d{{{_LANE_DIGITS}}}))?", re.ASCII
)
_RUNG = re.compile(r"v1\.ladder\.(classic|quorum)\.(\d{5})\.(\d{2})", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeSpec:
    """A durable exchange."""

    name: str
    kind: str
    arguments: tuple[Argument, ...] = ()
    #: It goes with the last queue behind it.
    auto_delete: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSpec:
    """A durable queue of ours."""

    name: str
    arguments: tuple[Argument, ...] = ()

    @property
    def is_quorum(self) -> bool:
        """Whether it is replicated, and so slow to settle when new."""
        return ("x-queue-type", "quorum") in self.arguments


@dataclass(frozen=True, slots=True, kw_only=True)
class BindingSpec:
    """From an exchange to a queue."""

    exchange: str
    queue: str
    routing_key: str = ""
    arguments: tuple[tuple[str, str | int | bool], ...] = ()


Spec = TypeVar("Spec", ExchangeSpec, QueueSpec, BindingSpec)


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """A set of broker objects in the order in which they are declared."""

    exchanges: tuple[ExchangeSpec, ...] = ()
    queues: tuple[QueueSpec, ...] = ()
    bindings: tuple[BindingSpec, ...] = ()

    def __or__(self, other: Topology) -> Topology:
        """Both. One name with two different arguments is a mistake in the settings."""
        union = Topology(
            exchanges=_union(self.exchanges, other.exchanges),
            queues=_union(self.queues, other.queues),
            bindings=_union(self.bindings, other.bindings),
        )
        names = [queue.name for queue in union.queues]
        for name in names:
            if names.count(name) > 1:
                raise InvalidSetting(
                    setting="dlx_dead_letter_queue",
                    value=name,
                    wanted="another name, or dlx_queue_type one type: classic and quorum work queues would share it",
                )
        return union


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkQueue:
    """A queue that workers consume from, as far as we need to know it."""

    name: str
    kind: QueueType = "classic"
    #: Whose dead letters its own belong to: its name, or the alias of a broadcast queue whose name is random.
    family: str = ""

    def __post_init__(self) -> None:
        if not self.family:
            object.__setattr__(self, "family", self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """A way to wait one fixed time, by its name: a lane that stays or expires, or a rung of the ladder."""

    name: str
    kind: QueueType
    delay_ms: int
    is_rung: bool = False
    stays: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """Every name on the broker is a function of these, and API: ``v1`` changes when any argument does."""

    prefix: str = "dlx"
    dead_letter_queue: str = "{queue}.dead"
    #: How many messages a lane may hold.
    max_waiting: int | None = None

    @classmethod
    def of(cls, settings: Settings) -> Names:
        """The names that these settings lead to."""
        return cls(
            prefix=settings.prefix, dead_letter_queue=settings.dead_letter_queue, max_waiting=settings.max_waiting
        )

    def lane(self, kind: QueueType, delay_ms: int, *, expires_ms: int = 0) -> str:
        """The lane's fanout exchange, and its wait queue."""
        limit = "" if self.max_waiting is None else f"max{self.max_waiting}."
        name = f"{self.prefix}.v1.wait.{kind}.{limit}{delay_ms:0{_LANE_DIGITS}d}"
        return f"{name}.{delay_ms + expires_ms:0{_LANE_DIGITS}d}" if expires_ms else name

    def rung(self, kind: QueueType, resolution_ms: int, number: int) -> str:
        """The exchange of a rung of the ladder, and its wait queue."""
        return f"{self.prefix}.v1.ladder.{kind}.{resolution_ms:05d}.{number:02d}"

    def lane_of(self, name: str) -> Lane | None:
        """The lane, or rung, whose name this is, also under other limits than ours; None if it is none of ours."""
        ours, tail = name.startswith(f"{self.prefix}."), name.removeprefix(f"{self.prefix}.")
        if ours and (lane := _LANE.fullmatch(tail)):
            kind, delay_ms, expires_ms = lane.groups()
            return Lane(name=name, kind=_kind(kind), delay_ms=int(delay_ms), stays=not expires_ms)
        if ours and (rung := _RUNG.fullmatch(tail)):
            kind, resolution_ms, number = rung.groups()
            return Lane(name=name, kind=_kind(kind), delay_ms=int(resolution_ms) << int(number), is_rung=True)
        return None

    def back(self, kind: QueueType) -> str:
        """The return exchange: what waited goes through it to its work queue."""
        return f"{self.prefix}.v1.return.{kind}"

    def orphans(self, kind: QueueType) -> str:
        """The alternate exchange of the return exchange, and the queue behind it."""
        return f"{self.prefix}.v1.orphans.{kind}"

    def dead(self) -> str:
        """The dead-letter exchange; routing key = the work queue's family."""
        return f"{self.prefix}.v1.dead"

    def starts(self, digest: str) -> str:
        """The queue of marks of one suspect message; see broker/starts.py."""
        return f"{self.prefix}.v1.starts.{digest}"

    def dead_letters(self, family: str) -> str:
        """The dead-letter queue of a family of work queues."""
        name = self.dead_letter_queue.replace("{queue}", family)
        # A work queue that keeps its own dead letters would run them again, for ever.
        if name == family or len(name.encode()) > _NAME_BYTES:
            raise InvalidSetting(
                setting="dlx_dead_letter_queue",
                value=self.dead_letter_queue,
                wanted=f"a pattern that makes another name, of at most {_NAME_BYTES} bytes, of {family!r}",
            )
        return name


def foundation(names: Names, kinds: Iterable[QueueType]) -> Topology:
    """What stands however many lanes and work queues there are."""
    exchanges: list[ExchangeSpec] = [ExchangeSpec(name=names.dead(), kind="direct")]
    queues: list[QueueSpec] = []
    bindings: list[BindingSpec] = []
    for kind in sorted(set(kinds)):
        orphans = names.orphans(kind)
        exchanges += [
            ExchangeSpec(name=orphans, kind="fanout"),
            # When the work queue is gone, the default exchange would lose the message, or block its lane; ours parks
            # it with the orphans and the lane flows (test_when_the_work_queue_is_gone_its_retries_are_parked).
            ExchangeSpec(name=names.back(kind), kind="direct", arguments=(("alternate-exchange", orphans),)),
        ]
        queues.append(QueueSpec(name=orphans, arguments=_keeping(kind)))
        bindings.append(BindingSpec(exchange=orphans, queue=orphans))
    return Topology(exchanges=tuple(exchanges), queues=tuple(queues), bindings=tuple(bindings))


def lane(names: Names, kind: QueueType, delay_ms: int, *, expires_ms: int = 0) -> Topology:
    """A way to wait one fixed time.

    RabbitMQ expires messages at a queue's head only, hence one delay per queue
    (test_a_short_delay_overtakes_a_long_one). The exchange is a fanout and there is no x-dead-letter-routing-key, so
    that the routing key is free to carry the work queue's name through the wait: all work queues share the lane.

    With ``expires_ms`` it goes that long after the last message has left it, at the earliest, if it is declared again
    in time: see broker/leases.py.
    """
    name = names.lane(kind, delay_ms, expires_ms=expires_ms)
    queue = wait_queue(name, kind, delay_ms=delay_ms, then=names.back(kind))
    expires: tuple[Argument, ...] = (("x-expires", delay_ms + expires_ms),) if expires_ms else ()
    queue = replace(queue, arguments=queue.arguments + _limit(names, kind) + expires)
    return Topology(
        exchanges=(ExchangeSpec(name=name, kind="fanout", auto_delete=bool(expires_ms)),),
        queues=(queue,),
        bindings=(BindingSpec(exchange=name, queue=name),),
    )


def wait_queue(name: str, kind: QueueType, *, delay_ms: int, then: str) -> QueueSpec:
    """A queue that keeps each message so long and gives it to the exchange ``then``."""
    arguments: tuple[Argument, ...] = (("x-message-ttl", delay_ms), ("x-dead-letter-exchange", then))
    if kind == "quorum":
        # Only at-least-once dead-lettering survives the loss of a cluster node, and it asks for this overflow mode.
        arguments += (("x-dead-letter-strategy", "at-least-once"), ("x-overflow", "reject-publish"))
    return QueueSpec(name=name, arguments=_keeping(kind) + arguments)


def around(names: Names, queue: WorkQueue) -> Topology:
    """What a work queue needs around it: the way back into it, and its dead-letter queue."""
    dead_letters = names.dead_letters(queue.family)
    return Topology(
        queues=(QueueSpec(name=dead_letters, arguments=_keeping(queue.kind)),),
        bindings=(
            BindingSpec(exchange=names.back(queue.kind), queue=queue.name, routing_key=queue.name),
            BindingSpec(exchange=names.dead(), queue=dead_letters, routing_key=queue.family),
        ),
    )


def _kind(text: str) -> QueueType:
    return "quorum" if text == "quorum" else "classic"


def _keeping(kind: QueueType) -> tuple[Argument, ...]:
    """Arguments of a queue that keeps what is in it."""
    if kind == "classic":
        return (("x-queue-type", "classic"),)  # said aloud: a virtual host's default may be another
    return (("x-queue-type", "quorum"), ("x-delivery-limit", NO_DELIVERY_LIMIT))


def _limit(names: Names, kind: QueueType) -> tuple[Argument, ...]:
    """Arguments of a lane that holds so many and refuses more; the publisher is told (test_a_full_lane_refuses)."""
    if names.max_waiting is None:
        return ()
    refusing: tuple[Argument, ...] = () if kind == "quorum" else (("x-overflow", "reject-publish"),)
    return (*refusing, ("x-max-length", names.max_waiting))


def _union(ours: tuple[Spec, ...], theirs: tuple[Spec, ...]) -> tuple[Spec, ...]:
    return ours + tuple(spec for spec in theirs if spec not in ours)
