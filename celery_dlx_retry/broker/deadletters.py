"""Look at dead letters without harm; bodies are bytes here, and never decoded.

AMQP has no other way to look than to take, so what we look at is held, unacknowledged, until we are done: others do not
see it meanwhile, and whatever happens to us, the broker has it.
"""

from __future__ import annotations

from array import array
from collections import deque
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING, Any

from amqp import spec
from amqp.exceptions import AMQPError, NotFound

from celery_dlx_retry.broker.queues import is_surely_classic
from celery_dlx_retry.core.deadletter import dead_message
from celery_dlx_retry.core.message import Message
from celery_dlx_retry.errors import Missing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kombu.connection import Connection

    from celery_dlx_retry.core.deadletter import DeadMessage

#: How many dead letters are in our memory at once.
PAGE = 200

_SILENCE_SECONDS = 0.2


def browse(connection: Connection, queue: str) -> Iterator[DeadMessage]:
    """Every dead letter in a queue, oldest first. They stay there; others do not see them while we look."""
    with reading(connection, queue) as letters:
        for _, letter in letters:
            yield letter


def depth(connection: Connection, queue: str) -> int | None:
    """How many dead letters nobody is looking at; None if there is no such queue."""
    with closing(connection.channel()) as channel:
        try:
            return int(channel.queue_declare(queue, passive=True).message_count)
        except NotFound:
            return None


@contextmanager
def reading(
    connection: Connection, queue: str, *, page: int = PAGE
) -> Iterator[Iterator[tuple[Callable[[], None], DeadMessage]]]:
    """All that are there now, each with the way to take it off the queue for good."""
    with closing(connection.channel()) as channel:
        channel.auto_decode = False
        try:
            channel.queue_declare(queue, passive=True)
        except NotFound as exc:
            raise Missing(kind="dead-letter queue", name=queue, cure="It is made when a worker starts.") from exc
        reader = _Reader(channel, queue, page=page)
        try:
            yield reader.letters()
        except (KeyboardInterrupt, AMQPError, OSError):
            # Perhaps in the middle of an answer: there is no talking on this connection any more, and when it is gone
            # the broker takes back what is not acknowledged.
            with suppress(AMQPError, OSError):
                connection.collect()
            raise
        finally:
            if channel.connection is not None:
                reader.give_back(counted=not is_surely_classic(connection, queue))


class _Reader:
    """Takes a queue's messages, a page at a time.

    A consumer, for a basic.get each costs ten times as much. Its prefetch count is the page, and when all of a page is
    held, the next consumer takes over: that way no more than a page is ever on its way to us.
    """

    def __init__(self, channel: Any, queue: str, *, page: int) -> None:
        self._channel, self._queue, self._page = channel, queue, page
        self._arrived: deque[Any] = deque()
        self._consumer: str | None = None
        #: The unacknowledged delivery tags of each consumer so far, in order; eight bytes for each.
        self._held = [array("Q")]

    def letters(self) -> Iterator[tuple[Callable[[], None], DeadMessage]]:
        first = self._channel.basic_get(self._queue)
        if first is None:
            return
        yield self._hold(first)
        # No more than there were: what is replayed and dies again comes next time. The count comes from a get, for that
        # of a declare lags behind on a quorum queue that somebody has just looked at.
        for _ in range(first.delivery_info["message_count"]):
            found = self._next()
            if found is None:
                return  # somebody else is looking at the rest
            yield self._hold(found)

    def give_back(self, *, counted: bool) -> None:
        """Return what is held, in order.

        Closing the channel does it at once, but counts as a failed delivery on quorum queues
        (test_thirty_looks_do_not_use_up_the_limit_of_a_queue_that_is_not_ours). A nack is not counted, but takes a
        classic queue time in the square of their number: four thousand took seven seconds.
        """
        self._cancel()
        if not counted:
            return
        self._held[-1].extend(found.delivery_tag for found in self._arrived)
        for tags in self._held:
            if tags:
                # All of one consumer's at once: of two nacks for one consumer a quorum queue may put the second first
                # (test_looks_at_many_pages_leave_them_in_order).
                self._channel.send_method(spec.Basic.Nack, "Lbb", (tags[-1], True, True))
        self._wait_until_done()

    def _next(self) -> Any:
        while not self._arrived:
            if self._consumer is None or len(self._held[-1]) >= self._page:
                self._cancel()
                self._wait_until_done()  # which sets the prefetch count of the next consumer, too
                self._held.append(array("Q"))
                self._consumer = self._channel.basic_consume(self._queue, callback=self._arrived.append)
            try:
                self._channel.connection.drain_events(timeout=_SILENCE_SECONDS)
            except TimeoutError:
                if self._is_at_the_end():
                    return None
        return self._arrived.popleft()

    def _is_at_the_end(self) -> bool:
        found = self._channel.basic_get(self._queue)
        if found is not None:
            self._arrived.append(found)
        else:
            self._wait_until_done()  # what was on its way to us before that answer is here now
        return not self._arrived

    def _hold(self, found: Any) -> tuple[Callable[[], None], DeadMessage]:
        self._held[-1].append(found.delivery_tag)
        return self._acknowledge_last, self._letter(found)

    def _acknowledge_last(self) -> None:
        self._channel.basic_ack(self._held[-1].pop())
        # Who is killed now shall not have left an acknowledgement in a buffer: it would be a second copy of this one,
        # and of every other one in there.
        self._wait_until_done()

    def _wait_until_done(self) -> None:
        """The broker answers in order: after this it has done all that we asked for."""
        self._channel.basic_qos(0, self._page, False)  # noqa: FBT003 - py-amqp's signature

    def _cancel(self) -> None:
        if self._consumer is not None:
            self._channel.basic_cancel(self._consumer)
            self._consumer = None

    def _letter(self, found: Any) -> DeadMessage:
        message = Message(
            body=found.body,
            content_type=found.properties.get("content_type"),
            content_encoding=found.properties.get("content_encoding"),
            headers=found.properties.get("application_headers") or {},
            properties=found.properties,
        )
        info = found.delivery_info
        return dead_message(message, queue=self._queue, exchange=info["exchange"], routing_key=info["routing_key"])
