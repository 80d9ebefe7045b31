"""Who takes part: the same tasks, and the ways for their retries to wait."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from kombu.entity import Exchange, Queue

WaitRoute = Literal["celery", "dlx", "raw"]
QueueType = Literal["classic", "quorum"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """``way`` is who moves the message, ``queue_type`` that of the work queue."""

    key: str
    title: str
    way: WaitRoute
    queue_type: QueueType = "classic"
    lanes: QueueType = "classic"
    exchange_type: Literal["direct", "topic"] = "direct"
    #: Of the floor: whether a message goes through a lane, is confirmed, and waits for that.
    has_lane: bool = True
    is_confirmed: bool = True
    is_pipelined: bool = False
    has_prefetch_limit: bool = True
    #: How many of those that wait for long it gets.
    share: float = 1.0
    #: How much longer than the others' its crowd waits, so that all of it has been published when the first is due.
    patience: int = 1

    def queue(self, name: str) -> Queue:
        """A work queue as its users would declare it."""
        arguments = {"x-queue-type": "quorum"} if self.queue_type == "quorum" else None
        exchange = Exchange(name, type=self.exchange_type)
        return Queue(name, exchange, routing_key=name, queue_arguments=arguments)

    def conf(self, url: str, queues: list[str]) -> dict[str, Any]:
        """Return the settings of its Celery app; the others are Celery's defaults."""
        return {
            "broker_url": url,
            "task_queues": [self.queue(name) for name in queues],
            "task_default_queue": queues[0],
            "task_default_exchange": queues[0],
            "task_default_exchange_type": self.exchange_type,
            "task_default_routing_key": queues[0],
            "task_ignore_result": True,
            "broker_connection_retry_on_startup": True,
        }


COUNTDOWN = Contender(key="countdown", title="Celery countdown", way="celery")
NATIVE = Contender(
    key="native",
    title="Celery native delayed delivery",
    way="celery",
    queue_type="quorum",
    exchange_type="topic",
    # Every message goes through 28 topic exchanges: a hundred thousand would take the broker longer than all the rest.
    share=0.2,
    patience=5,
)
CLASSIC = Contender(key="classic", title="DLXRetryTask, classic lanes", way="dlx")
#: As it comes: on a work queue like countdown's.
QUORUM = Contender(key="quorum", title="DLXRetryTask, quorum lanes", way="dlx", lanes="quorum")
#: The same task, which fails instead of asking for its retry.
POLICY = Contender(key="policy", title="DLXRetryTask, quorum lanes, by a policy", way="dlx", lanes="quorum")
#: On a work queue like native delayed delivery's.
ALL_QUORUM = Contender(
    key="all_quorum", title="DLXRetryTask, quorum lanes and work queue", way="dlx", queue_type="quorum", lanes="quorum"
)
#: Without Celery's limit to what a worker may have; for what that costs the broker.
UNLIMITED = Contender(
    key="unlimited",
    title="the same, worker_prefetch_multiplier = 0",
    way="dlx",
    lanes="quorum",
    has_prefetch_limit=False,
)
FLOOR = Contender(key="floor", title="floor: kombu alone, classic lane", way="raw")
QUORUM_FLOOR = Contender(key="quorum_floor", title="floor: kombu alone, quorum lane", way="raw", lanes="quorum")
PIPELINED = Contender(key="pipelined", title="floor: kombu alone, pipelined", way="raw", is_pipelined=True)

CELERYS = (COUNTDOWN, NATIVE, CLASSIC, QUORUM)
#: The plainest that does the same as each of ours.
FLOORS = (FLOOR, QUORUM_FLOOR)
ALL = (*CELERYS, POLICY, ALL_QUORUM, *FLOORS, PIPELINED)

#: What makes up the floor.
STEPS = (
    Contender(key="back", title="straight back to its queue", way="raw", has_lane=False, is_confirmed=False),
    Contender(key="confirmed", title="the same, confirmed", way="raw", has_lane=False),
    Contender(key="lane", title="through a lane", way="raw", is_confirmed=False),
    Contender(key="kept", title="through a lane, confirmed", way="raw"),
    Contender(
        key="streamed", title="the same, confirms pipelined, one connection for all", way="raw", is_pipelined=True
    ),
)
BY_KEY = {contender.key: contender for contender in (*ALL, UNLIMITED, *STEPS)}
