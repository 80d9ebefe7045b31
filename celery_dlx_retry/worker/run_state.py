"""What Celery's delivery_info lacks: the queue of a message, the message itself, and the state of its run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery_dlx_retry.wire.headers import address_of, with_address
from celery_dlx_retry.wire.message import KEPT_PROPERTIES, Message
from celery_dlx_retry.worker.outcome import Retry

if TYPE_CHECKING:
    from collections.abc import Mapping

    from celery_dlx_retry.policy.decision import Decision, Wait
    from celery_dlx_retry.policy.rule_retries import RuleRetry
    from celery_dlx_retry.topology.names import Names, WorkQueue
    from celery_dlx_retry.worker.outcome import Outcome


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

    It travels into the pool's child together with the body, which pickle then sends once. As attributes they stay out
    of what ``celery inspect active`` shows of the dict: a body is nobody's business.
    """

    def __init__(  # noqa: PLR0913 - all that a pool process cannot find out by itself
        self,
        info: dict[str, Any],
        *,
        queue: WorkQueue,
        message: Message,
        worker: str,
        is_bound: bool,
        forwards: bool,
        is_watched: bool,
    ) -> None:
        super().__init__(info)
        self.queue = queue
        self.message = message
        #: The worker's main process in this life of it; see Runtime.life.
        self.worker = worker
        #: The main process has seen to it that what waited comes back to the queue.
        self.is_bound = is_bound
        #: The main process publishes a retry that comes with the result.
        self.forwards = forwards
        #: The main process tells somebody of the traceback of a retry.
        self.is_watched = is_watched
        self.run = RunState()

    def __reduce__(self) -> tuple[Any, ...]:
        facts = {name: value for name, value in self.__dict__.items() if name != "run"}
        return _rebuild, (dict(self), facts)


def as_sent(info: Mapping[str, Any], message: Message, *, queue: WorkQueue, names: Names) -> dict[str, Any]:
    """Return Celery's delivery_info with the exchange and the routing key that the sender published to.

    What has waited comes through our return exchange; Celery publishes a retry to where the message was.
    """
    if not (exchange := info.get("exchange")) or not names.is_return_exchange(str(exchange)):
        return dict(info)
    exchange, routing_key = address_of(message.headers, queue=queue.name)
    return {**info, "exchange": exchange, "routing_key": routing_key}


def addressed(
    headers: Mapping[str, Any], info: Mapping[str, Any], *, queue: WorkQueue, to: WorkQueue | None = None
) -> dict[str, Any]:
    """Return the headers of a message from a queue that is to wait, for that queue or another one."""
    if to is not None and to.name != queue.name:
        return with_address(headers, exchange="", routing_key=to.name, queue=to.name)
    return with_address(headers, exchange=info.get("exchange"), routing_key=info.get("routing_key"), queue=queue.name)


def _rebuild(info: dict[str, Any], facts: dict[str, Any]) -> DeliveryInfo:
    return DeliveryInfo(info, **facts)


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
