"""Publish now, hear of it later: confirmed and mandatory, for an event loop that must not stand still."""

from __future__ import annotations

import re
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from amqp.exceptions import AccessRefused, NotFound, PreconditionFailed

from celery_dlx_retry.broker.connection import BROKER_ERRORS, drop, open_connection
from celery_dlx_retry.broker.encoding import bytes_of, encoded
from celery_dlx_retry.broker.sync_publisher import LONGEST_IDLE_SECONDS, PERSISTENT, PROBE
from celery_dlx_retry.errors import Nacked, PublishError, Unconfirmed, Unpublishable, Unreachable, Unroutable

if TYPE_CHECKING:
    from collections.abc import Callable

    from kombu.connection import Connection

    from celery_dlx_retry.wire.message import Message

    Problem = PublishError | Unpublishable
    Then = Callable[[Problem | None], None]

# After a broker was not to be reached, nobody tries again for so long: each try holds the event loop up.
_PAUSE_SECONDS = 1.0
# An event loop that stood still looks once more after so long: the answer may be on its way.
_GRACE_SECONDS = 1.0
# A refused channel is replaced so often at most: a new one costs three round trips.
_CHANNEL_SECONDS = 1.0
_TOO_LONG = re.compile(r"larger than configured max size (\d+)")


@dataclass(slots=True, kw_only=True)
class _Sent:
    message: Message
    exchange: str
    routing_key: str
    due: float
    then: Then
    problem: Problem | None = None


class Pipeline:
    """One connection in confirm mode, read by an event loop.

    ``then`` of each message is called once: with None when the broker has it, with a PublishError when it is not known
    to have it, with Unpublishable when its content is at fault. A single thread, the event loop's, does it all.

    Nothing is written while the broker does not read, as under a memory alarm: what is in the socket then arrives in
    the end, when its delivery has long gone back to its queue (test_what_is_held_under_an_alarm_is_not_sent_later).
    """

    def __init__(
        self,
        connect: Callable[[], Connection],
        *,
        hub: Any,
        confirm_timeout_ms: int,
        write_timeout_ms: int,
        probe_at: str = "",
    ) -> None:
        self._probe_exchange = probe_at
        self._connect, self._hub = connect, hub
        self._timeout_ms, self._write_timeout_ms = confirm_timeout_ms, write_timeout_ms
        self._connection: Connection | None = None
        self._channel: Any = None
        self._descriptor, self._tag = -1, 0
        self._is_read, self._is_probed = False, False
        self._may_probe, self._is_answered = True, False
        self._outbox: deque[_Sent] = deque()
        self._sent: dict[int, _Sent] = {}
        self._settled: deque[_Sent] = deque()
        self._is_watched, self._looks_again = False, False
        self._look_at = 0.0
        self._is_refused, self._channel_since = False, 0.0
        self._used_at = 0.0
        self._not_before = 0.0
        self._longest_body: int | None = None  # that the broker takes, once it has said so

    def publish(self, message: Message, *, exchange: str, routing_key: str, then: Then) -> None:
        """Send it; ``then`` is called from the event loop, or at once if it cannot be sent."""
        now = time.monotonic()
        due = now + self._timeout_ms / 1000
        sent = _Sent(message=message, exchange=exchange, routing_key=routing_key, due=due, then=then)
        try:
            self._ready(now)
        except PublishError as problem:
            self._refuse(sent, problem)
        else:
            self._outbox.append(sent)
            self._write()
        self._used_at = now
        self._watch()
        self._tell()

    def drain(self, *, within: float) -> None:
        """Wait for what is on its way, without the event loop."""
        deadline = time.monotonic() + within
        while (
            (self._sent or self._outbox) and self._connection is not None and (left := deadline - time.monotonic()) > 0
        ):
            self._read(timeout=left)
            self._write()
        self._tell()

    def close(self) -> None:
        """Forget what is on its way: nobody is told of it any more."""
        self._outbox.clear()
        self._sent.clear()
        self._settled.clear()
        self._drop()

    def _ready(self, now: float) -> None:
        if self._connection is not None and not self._sent and now - self._used_at > LONGEST_IDLE_SECONDS:
            # Something on the way may have forgotten a connection that was silent for long, and told nobody.
            self._drop()
        if self._connection is not None:
            return
        if now < self._not_before:
            raise Unreachable(problem="the broker was not to be reached a moment ago")
        connection = self._connect()
        try:
            # Confirms are read by the event loop, so py-amqp is not to wait for each.
            open_connection(connection, timeout_ms=self._write_timeout_ms, is_confirmed=False)
            self._use(connection.default_channel)
        except (*BROKER_ERRORS, Unreachable) as exc:
            self._not_before = time.monotonic() + _PAUSE_SECONDS
            drop(connection)
            raise exc if isinstance(exc, Unreachable) else Unreachable(problem=str(exc)) from exc
        self._connection = connection
        self._descriptor = connection.connection.sock.fileno()
        self._hub.add_reader(self._descriptor, self._on_readable)
        connection.connection.on_blocked = self._on_blocked
        connection.connection.on_unblocked = self._on_unblocked
        self._is_probed = self._may_probe and not self._is_answered
        self._is_read, self._is_answered = not self._is_probed, False
        if self._is_probed:
            self._tag += 1
            try:
                probe = self._channel.prepare_message(PROBE.encode())
                self._channel.basic_publish(probe, exchange=self._probe_exchange, routing_key=PROBE, mandatory=True)
            except BROKER_ERRORS as exc:
                self._drop()
                raise Unreachable(problem=str(exc)) from exc

    def _use(self, channel: Any) -> None:
        """Publish on this channel from now on."""
        channel.confirm_select()
        channel.events["basic_ack"].add(self._on_ack)
        channel.events["basic_nack"].add(self._on_nack)
        channel.events["basic_return"].add(self._on_return)
        self._channel, self._tag = channel, 0
        self._is_refused, self._channel_since = False, time.monotonic()

    def _may_write(self) -> bool:
        """Whether the channel takes messages; one that a full queue has refused is replaced first.

        On RabbitMQ 3.10 that queue refuses all that comes on this channel, also when it is no longer full.
        """
        if not self._is_read or self._connection is None:
            return False
        if not self._is_refused or time.monotonic() - self._channel_since < _CHANNEL_SECONDS:
            return True
        if self._sent:
            return False  # their confirms come on the old channel, and soon
        try:
            self._channel.close()
            self._use(self._connection.channel())
        except BROKER_ERRORS as exc:
            self._fail(exc)
        return self._is_read and self._connection is not None

    def _write(self) -> None:
        """All that is to go out, as long as the broker reads."""
        while self._outbox and self._may_write():
            sent = self._outbox.popleft()
            sent.due = time.monotonic() + self._timeout_ms / 1000
            try:
                prepared = self._prepared(sent.message)
            except Unpublishable as problem:
                self._refuse(sent, problem)
                continue
            self._tag += 1
            self._sent[self._tag] = sent
            try:
                # Without mandatory an unroutable message is confirmed and dropped (test_an_unroutable_publish_raises).
                self._channel.basic_publish(
                    prepared, exchange=sent.exchange, routing_key=sent.routing_key, mandatory=True
                )
            except Exception as exc:  # noqa: BLE001 - half of a frame may be in the socket
                self._fail(exc)

    def _on_blocked(self, _reason: str) -> None:
        self._is_read = False

    def _on_unblocked(self) -> None:
        self._is_read = True

    def _prepared(self, message: Message) -> Any:
        """The message as py-amqp writes it, encoded before the connection that all share is touched."""
        if (flaw := self._flaw_of(message)) is not None:
            raise flaw
        properties = {**message.properties, "delivery_mode": PERSISTENT}
        priority = properties.pop("priority", None)
        return encoded(
            self._channel,
            bytes_of(message),
            priority,
            message.content_type,
            message.content_encoding,
            message.headers,
            properties,
        )

    def _flaw_of(self, message: Message) -> Unpublishable | None:
        longest = self._longest_body
        if longest is None or len(message.body) <= longest:
            return None
        return Unpublishable(what="its body", problem=f"is longer than the {longest} bytes that the broker takes")

    def _refuse(self, sent: _Sent, problem: Problem) -> None:
        sent.problem = problem
        self._settled.append(sent)

    def _on_readable(self) -> None:
        self._read(timeout=0)
        self._write()
        self._watch()
        self._tell()

    def _read(self, *, timeout: float) -> None:
        """All that has come, or the first that comes."""
        try:
            while self._connection is not None:
                self._connection.drain_events(timeout=timeout)
                timeout = 0
        except TimeoutError:
            pass
        except BROKER_ERRORS as exc:
            self._fail(exc)

    def _on_ack(self, tag: int, multiple: bool) -> None:  # noqa: FBT001 - py-amqp's signature
        self._settle(tag, is_multiple=multiple)

    def _on_nack(self, tag: int, multiple: bool) -> None:  # noqa: FBT001 - py-amqp's signature
        for each in self._up_to(tag, is_multiple=multiple):
            self._is_refused = True
            sent = self._sent[each]
            sent.problem = Nacked(exchange=sent.exchange, routing_key=sent.routing_key)
        self._settle(tag, is_multiple=multiple)

    def _on_return(self, _problem: Any, exchange: str, routing_key: str, message: Any) -> None:
        """RabbitMQ returns a message just before it confirms it. AMQP says which by its content alone."""
        returned = (message.headers or {}).get("id"), exchange, routing_key
        for sent in self._sent.values():
            if (sent.message.headers.get("id"), sent.exchange, sent.routing_key) == returned:
                sent.problem = Unroutable(exchange=exchange, routing_key=routing_key)

    def _up_to(self, tag: int, *, is_multiple: bool) -> list[int]:
        return [each for each in self._sent if each <= tag] if is_multiple else [tag] if tag in self._sent else []

    def _settle(self, tag: int, *, is_multiple: bool) -> None:
        if self._is_probed:
            # The probe is the first message on its connection. Its return tells less: it is confirmed without one where
            # an operator's policy gives the exchange an alternate exchange.
            self._is_read, self._is_probed = True, False
        self._settled.extend(self._sent.pop(each) for each in self._up_to(tag, is_multiple=is_multiple))

    def _fail(self, exc: BaseException) -> None:
        """Nobody knows what became of all that is on its way; the connection may lie from now on."""
        self._drop()
        if isinstance(exc, (AccessRefused, NotFound)) and not self._is_read:
            # The broker has answered: this user may not write there, or there is no exchange yet.
            self._is_answered, self._may_probe = True, isinstance(exc, NotFound)
        if isinstance(exc, PreconditionFailed) and (found := _TOO_LONG.search(str(exc))):
            self._longest_body = int(found[1])
        for sent in self._sent.values():
            sent.problem = self._flaw_of(sent.message)
            if sent.problem is not None:
                continue
            if isinstance(exc, NotFound) and repr(sent.exchange) in str(exc):
                sent.problem = Unroutable(exchange=sent.exchange, routing_key=sent.routing_key)
            elif isinstance(exc, PublishError):
                sent.problem = exc
            else:
                sent.problem = Unreachable(problem=str(exc) or type(exc).__name__)
        self._settled.extend(self._sent.values())
        self._sent.clear()
        self._go_on()

    def _go_on(self) -> None:
        """What was not written yet has a new connection, or none."""
        if not self._outbox:
            return
        try:
            self._ready(time.monotonic())
        except PublishError as problem:
            while self._outbox:
                self._refuse(self._outbox.popleft(), problem)
        else:
            self._write()

    def _tell(self) -> None:
        while self._settled:
            sent = self._settled.popleft()
            sent.then(sent.problem)

    def _oldest(self) -> _Sent | None:
        waiting = [next(iter(self._sent.values()), None), self._outbox[0] if self._outbox else None]
        return min((each for each in waiting if each), key=lambda it: it.due, default=None)

    def _watch(self) -> None:
        if not self._is_watched and (oldest := self._oldest()):
            self._look_after(max(0.0, oldest.due - time.monotonic()))

    def _look_after(self, seconds: float) -> None:
        self._is_watched, self._look_at = True, time.monotonic() + seconds
        self._hub.call_later(seconds, self._look)

    def _look(self) -> None:
        """After a confirm that did not come in time the next one could be taken for it: all start again.

        A body of the solo pool runs in the event loop, and timers come before sockets then: what the broker has sent
        meanwhile is read first, and what could not be written meanwhile is written.
        """
        self._is_watched = False
        stood_still = time.monotonic() - self._look_at > _GRACE_SECONDS
        self._read(timeout=0)
        self._write()
        now = time.monotonic()
        oldest = self._oldest()
        is_late = oldest is not None and oldest.due <= now
        self._looks_again = is_late and stood_still and not self._looks_again
        if self._looks_again:
            self._look_after(_GRACE_SECONDS)
        elif is_late:
            self._judge(oldest, now)
        self._tell()
        self._watch()

    def _judge(self, oldest: Any, now: float) -> None:
        while self._outbox and self._outbox[0].due <= now:
            late = self._outbox.popleft()
            self._refuse(late, self._unconfirmed(late))
        self._fail(self._unconfirmed(oldest))

    def _unconfirmed(self, sent: _Sent) -> Unconfirmed:
        return Unconfirmed(exchange=sent.exchange, routing_key=sent.routing_key, timeout_ms=self._timeout_ms)

    def _drop(self) -> None:
        connection, self._connection, self._channel = self._connection, None, None
        if connection is not None:
            self._hub.remove(self._descriptor)  # by its number: the socket may be closed and have none any more
            drop(connection)
