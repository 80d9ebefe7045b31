"""Read the messages of a queue, a page at a time, and give back in order those that were not acknowledged."""

from __future__ import annotations

from array import array
from collections import deque
from typing import TYPE_CHECKING, Any

from amqp import spec
from amqp.exceptions import ResourceError

from celery_dlx_retry.broker.frames import accept_undecodable_headers
from celery_dlx_retry.wire.message import Message

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kombu.connection import Connection

#: The most messages in transit to us at once.
PAGE = 200
# The first page, before sizes are known. Each later page is twice as long, up to this many bytes: messages in transit
# are in our memory as soon as we wait for another answer of the broker.
_FIRST_PAGE = 8
_PAGE_BYTES = 16 * 2**20

# A quorum queue of RabbitMQ 3.10 keeps returned messages in an Erlang map, which has no order above this size.
_STEP = 32
# After 32 pending commands a channel of 3.10 merges the next ones into one of any length.
_RETURNS_PER_CHANNEL = 24

# After this silence a get checks whether it is the end.
_SILENCE_SECONDS = 0.05


class Reader:
    """Holds messages until they are acknowledged or given back.

    It uses consumers, because a basic.get for each message costs ten times as much. The prefetch count is the page.
    When a consumer holds a whole page, the next one takes over, so that no more than a page is in transit. When a
    channel holds as many messages as it can give back in order, the next channel takes over. RabbitMQ has no limit in
    bytes, so the length of a page follows from the largest message so far.
    """

    def __init__(self, connection: Connection, queue: str, *, page: int = PAGE) -> None:
        self._connection, self._queue, self._longest = connection, queue, page
        self._page = _FIRST_PAGE // 2
        self._largest = 1
        self._is_ending = False
        self._arrived: deque[Any] = deque()
        self._consumer = ""
        self._channels: list[Any] = []
        self._commands = 0
        #: The delivery tags that each consumer or get still holds, in order, with its channel; eight bytes for each.
        self._held: list[tuple[Any, array[int]]] = []
        self._last_taker: object = None
        self._next_channel()

    def first(self) -> Any:
        """Return the first message by a get, which also counts the others; None if the queue is empty."""
        raw = self._channel.basic_get(self._queue)
        if raw is not None:
            self._largest = max(self._largest, len(raw.body))
            self._hold(raw)
        return raw

    def messages(self, most: int) -> Iterator[Any]:
        """Yield the next messages until none arrives, at most so many: others may keep adding messages."""
        for _ in range(most):
            raw = self._next()
            if raw is None:
                return  # the end, or another consumer holds the rest
            self._hold(raw)
            yield raw

    def acknowledge_last(self) -> None:
        """Remove the last message from the queue."""
        channel, tags = self._held[-1]
        channel.basic_ack(tags.pop())
        # Wait for the broker: if we were killed with acknowledgements in a buffer, each of their messages would exist
        # twice.
        _wait_until_done(channel, self._page)

    def give_back(self, *, counted: bool) -> None:
        """Give back the held messages in order.

        Closing the channel does it at once, but counts as a failed delivery on quorum queues
        (test_thirty_looks_do_not_use_up_the_limit_of_a_queue_that_is_not_ours). A nack is not counted, but takes a
        classic queue time in the square of their number: four thousand took seven seconds.
        """
        self._is_ending = True
        for message in self._arrived:
            message.body = b""
        self._cancel()
        while self._arrived:
            self._hold(self._arrived.popleft())
        if counted:
            for channel, tags in self._held:
                give_back(channel, tags)
        for channel in self._channels:
            channel.close()

    @property
    def is_open(self) -> bool:
        """Return whether the connection is still open."""
        return self._channel.connection is not None

    @property
    def _channel(self) -> Any:
        return self._channels[-1]

    def _next(self) -> Any:
        while not self._arrived:
            if not self._consumer or self._is_full or self._page > self._fitting:
                self._cancel()
                if self._arrived:
                    break  # it was in transit
                self._take_over()
            try:
                self._channel.connection.drain_events(timeout=_SILENCE_SECONDS)
            except TimeoutError:
                if self._is_at_the_end():
                    return None
        return self._arrived.popleft()

    def _take_over(self) -> None:
        self._page = min(self._fitting, 2 * self._page)
        self._commands += _steps(self._page)
        if self._commands > _RETURNS_PER_CHANNEL:
            self._next_channel()
            self._commands = _steps(self._page)
        _wait_until_done(self._channel, self._page)  # which sets the prefetch count, too
        self._consumer = self._channel.basic_consume(self._queue, callback=self._arrive)

    def _next_channel(self) -> None:
        try:
            channel = self._connection.channel()
        except ResourceError:
            if not self._channels:
                raise
            return  # the broker allows no more: keep the last channel, at the cost of the order
        accept_undecodable_headers(self._connection)
        channel.auto_decode = False
        self._channels.append(channel)

    @property
    def _is_full(self) -> bool:
        """Return whether the consumer holds a whole page."""
        return self._last_taker == self._consumer and len(self._held[-1][1]) >= self._page

    @property
    def _fitting(self) -> int:
        """Return how many messages of the largest size so far make a page."""
        return max(1, min(self._longest, _PAGE_BYTES // self._largest))

    def _arrive(self, message: Any) -> None:
        self._largest = max(self._largest, len(message.body))
        if self._is_ending:
            message.body = b""  # it goes back unread
        self._arrived.append(message)

    def _is_at_the_end(self) -> bool:
        raw = self._channel.basic_get(self._queue)
        if raw is not None:
            self._arrive(raw)
            self._cancel()  # the next consumer begins behind it
        else:
            _wait_until_done(self._channel, self._page)  # messages that were in transit have arrived after that
        return not self._arrived

    def _hold(self, raw: Any) -> None:
        """Note the delivery tag by its consumer or get: RabbitMQ gives back messages for each of them separately."""
        taker = raw.delivery_info.get("consumer_tag") or object()
        if taker != self._last_taker:
            self._held.append((raw.channel, array("Q")))
            self._last_taker = taker
        self._held[-1][1].append(raw.delivery_tag)

    def _cancel(self) -> None:
        if self._consumer:
            self._channel.basic_cancel(self._consumer)
            self._consumer = ""


def give_back(channel: Any, tags: array[int] | list[int]) -> None:
    """Give back the messages of a cancelled consumer in order (test_looks_at_many_leave_them_in_order)."""
    for start in range(0, len(tags), _STEP):
        channel.send_method(spec.Basic.Nack, "Lbb", (tags[start : start + _STEP][-1], True, True))
    _wait_until_done(channel, 0)


def message_of(raw: Any) -> Message:
    """Return a delivery as a value; its body is bytes."""
    return Message(
        body=raw.body,
        content_type=raw.properties.get("content_type"),
        content_encoding=raw.properties.get("content_encoding"),
        headers=raw.properties.get("application_headers") or {},
        properties=raw.properties,
    )


def _steps(count: int) -> int:
    return -(-count // _STEP)


def _wait_until_done(channel: Any, prefetch: int) -> None:
    """Wait until the broker has done everything that we asked for: it answers in order."""
    channel.basic_qos(0, prefetch, False)  # noqa: FBT003 - py-amqp's signature
