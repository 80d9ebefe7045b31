"""One run of a task: what it received and whether that is sound, what is decided so far, and how it ends.

A run ends in one value, which travels from the pool process to the main process. It is the attribute ``dlx_outcome`` of
the ``ExceptionInfo`` that a run returns, and the only attribute that we add to objects of other packages. A run without
one is a success, or its message is not settled yet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from celery_dlx_retry.wire.headers import address_of
from celery_dlx_retry.wire.message import KEPT_PROPERTIES, Message

if TYPE_CHECKING:
    from celery_dlx_retry.policy.decision import Decision, Wait
    from celery_dlx_retry.policy.rule_retries import RuleRetry
    from celery_dlx_retry.topology.names import Names, WorkQueue


# No slots: pickle asks a class with slots for its fields each time.
@dataclass(frozen=True, kw_only=True)
class Done:
    """The task is done, and only its result could not be stored."""


@dataclass(frozen=True, kw_only=True)
class Retry:
    """The task runs again later. The retry is the received message with these headers, or a message that is given."""

    #: The length of the lane.
    delay_ms: int = 0
    #: 1 is the first retry.
    number: int = 0
    #: The error that is retried: ``Type: text``.
    error: str = ""
    #: When it runs again, as Celery writes it into the headers.
    eta: str | None = None
    headers: Mapping[str, Any] | None = None
    message: Message | None = None
    #: The broker has confirmed it. If not, the main process publishes it.
    is_published: bool = False


@dataclass(frozen=True, kw_only=True)
class Parked:
    """The task did not run: an open breaker let its message wait."""

    #: When it may run, as Celery writes it.
    eta: str


@dataclass(frozen=True, kw_only=True)
class Dead:
    """The message is a dead letter."""

    #: Celery's tracer has stored the failure and called the errbacks. If not, the main process does.
    is_reported: bool = True
    #: What Celery's event of it says.
    facts: Mapping[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class LetFail:
    """The task failed, and its policy keeps no message."""

    is_reported: bool = True


@dataclass(frozen=True, kw_only=True)
class GiveBack:
    """The broker did not take the retry or the dead letter: the delivery goes back to its queue."""

    #: What did not take it, as ``place_of`` names it.
    place: str


@dataclass(frozen=True, kw_only=True)
class Unsettled:
    """The run failed outside of the body, and Celery's tracer has reported nothing: the main process does both."""


Outcome: TypeAlias = Done | Retry | Parked | Dead | LetFail | GiveBack | Unsettled

#: The message is where it belongs: only the acknowledgement of the delivery is left.
SETTLED = (Done, Retry, Parked, Dead, LetFail)


#: Attributes that Celery sets on a request. As a header each would make Celery report a retry that it never published.
FORGEABLE = frozenset(("is_eager", "called_directly", "_protected"))


def flaw_of(request: Mapping[str, Any]) -> str:
    """Return what is wrong with the headers and arguments of a task; empty if they are right."""
    for name, (is_sound, wanted) in _CHECKS.items():
        value = request.get(name)
        if (value is not None or name in _NEEDED) and not is_sound(value):
            return f"{name!r} is {type(value).__name__}; it must be {wanted}"
    return ""


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_table(value: Any) -> bool:
    return isinstance(value, Mapping)


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes))


def _is_list_of_text(value: Any) -> bool:
    return _is_list(value) and all(map(_is_text, value))


def _are_time_limits(value: Any) -> bool:
    return _is_list(value) and len(value) == 2 and all(map(_is_time_limit, value))  # noqa: PLR2004 - hard and soft


def _is_time_limit(value: Any) -> bool:
    return value is None or (isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 2**31)


_NEEDED = frozenset(("id", "task", "args", "kwargs"))
_CHECKS = {
    "id": (_is_text, "text"),
    "task": (_is_text, "text"),
    "args": (_is_list, "a list"),
    "kwargs": (_is_table, "a table"),
    "retries": (_is_count, "a whole number from 0 on"),
    "timelimit": (_are_time_limits, "two numbers of seconds"),
    "shadow": (_is_text, "text"),
    "root_id": (_is_text, "text"),
    "parent_id": (_is_text, "text"),
    "group": (_is_text, "text"),
    "stamped_headers": (_is_list_of_text, "a list of texts"),
    "stamps": (_is_table, "a table"),
}


class RunState:
    """One run of a task: how it ends, and what ``retry()`` and the policy have decided so far."""

    def __init__(self, received: Mapping[str, Any] | None = None, args: Any = (), kwargs: Any = ()) -> None:
        #: How the run ends; None if it is a success so far, or if nothing is settled yet.
        self.outcome: Outcome | None = None
        #: The guard is around the body now.
        self.is_guarded = False
        #: The error that the last retry() was called for.
        self.error: BaseException | None = None
        #: The last retry() raises, and with that the run is over.
        self.is_over = False
        #: The last retry() found that there are no retries left.
        self.is_exhausted = False
        #: What was decided about the error, if it is not to be retried.
        self.decision: Decision | None = None
        #: The guard has asked the policy, and this is what the next retry() does.
        self.granted: Wait | None = None
        #: The rule of the policy that granted the last retry; None if the policy itself did.
        self.rule: RuleRetry | None = None
        #: The request as the worker received it, and its arguments before the body could change them.
        self.received, self.args, self.kwargs = received, tuple(args), dict(kwargs)

    @property
    def is_retried(self) -> bool:
        """Whether a retry waits in a lane, or goes there with the result of this run."""
        return isinstance(self.outcome, Retry)


class DeliveryInfo(dict[str, Any]):
    """The dict that tasks know as ``self.request.delivery_info``: Celery's keys and values, and some attributes.

    It travels to the pool process together with the body, which pickle then sends once. The facts are attributes so
    that ``celery inspect active`` does not show the body.
    """

    #: Set when the run begins, in the process that runs it.
    run: RunState

    def __init__(  # noqa: PLR0913 - what a pool process cannot find out by itself
        self,
        info: dict[str, Any],
        *,
        queue: WorkQueue,
        message: Message,
        worker: str,
        is_bound: bool,
        forwards: bool,
        is_watched: bool = False,
    ) -> None:
        super().__init__(info)
        self.queue = queue
        self.message = message
        #: The worker's main process in this life of it; see AppContext.start_id.
        self.worker = worker
        #: The main process has seen to it that what waited comes back to the queue.
        self.is_bound = is_bound
        #: The main process publishes a retry that comes with the result.
        self.forwards = forwards
        #: A monitor or a hook in the main process reads the traceback of a retry.
        self.is_watched = is_watched


def as_sent(info: Mapping[str, Any], message: Message, *, queue: WorkQueue, names: Names) -> dict[str, Any]:
    """Return Celery's delivery_info with the exchange and the routing key that the sender published to.

    What has waited comes through our return exchange; Celery publishes a retry to where the message was.
    """
    if not (exchange := info.get("exchange")) or not names.is_return_exchange(str(exchange)):
        return dict(info)
    exchange, routing_key = address_of(message.headers, queue=queue.name)
    return {**info, "exchange": exchange, "routing_key": routing_key}


class PlainDeliveryInfo(dict[str, Any]):
    """Celery's own dict, on another broker and in eager mode, with the state of the run.

    Not an attribute of the request: Celery takes what it does not know there for a header of the message.
    """

    def __init__(self, info: dict[str, Any]) -> None:
        super().__init__(info)
        self.run = RunState()


def is_ours(request: Any) -> bool:
    """Whether a request came from RabbitMQ through our Request class: not eager, not a direct call."""
    return isinstance(request.delivery_info, DeliveryInfo)


def run_state_of(request: Any) -> RunState:
    """Return the state of the run of a request."""
    info = request.delivery_info
    if not isinstance(info, (DeliveryInfo, PlainDeliveryInfo)):
        info = request.delivery_info = PlainDeliveryInfo(info or {})
    run: RunState = info.run
    return run


def headers_of(request: Any) -> Mapping[str, Any]:
    """The headers of the message; elsewhere than on RabbitMQ only those that are not Celery's."""
    headers: Mapping[str, Any] | None = request.delivery_info.message.headers if is_ours(request) else request.headers
    return headers or {}


def message_of(message: Any) -> Message:
    """A Kombu message as a value."""
    return Message(
        body=message.body,
        content_type=message.content_type,
        content_encoding=message.content_encoding,
        headers=message.headers,
        properties={key: value for key, value in message.properties.items() if key in KEPT_PROPERTIES},
        compression=None if message.errors else message.headers.get("compression"),
    )
