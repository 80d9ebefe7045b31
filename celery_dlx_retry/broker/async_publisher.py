"""Publish without waiting: the event loop reads the confirms later. Every message is mandatory and confirmed."""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from amqp.exceptions import AccessRefused, NotFound, PreconditionFailed

from celery_dlx_retry.broker.connection import BROKER_ERRORS, drop, open_connection
from celery_dlx_retry.broker.frames import bytes_of, encoded
from celery_dlx_retry.broker.sync_publisher import LONGEST_IDLE_SECONDS, PERSISTENT, PROBE
from celery_dlx_retry.errors import (
    Nacked,
    PublishError,
    TopologyError,
    Unconfirmed,
    Unpublishable,
    Unreachable,
    Unroutable,
)

if TYPE_CHECKING:
    from kombu.connection import Connection

    from celery_dlx_retry.wire.message import Message


#: The broker is not known to have the message, or it cannot have it.
Problem: TypeAlias = PublishError | TopologyError | Unpublishable
#: Called once: with None when the broker has confirmed the message, else with the problem.
Then: TypeAlias = Callable[[Problem | None], None]

# After a failed connect there is no new one for this time: each one blocks the event loop.
_PAUSE_SECONDS = 1.0
# If the event loop was blocked, it reads once more after this time: the confirm may be on its way.
_GRACE_SECONDS = 1.0
# A channel with a refused message is replaced at most this often: a new one costs three round trips.
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

    It calls ``then`` of each message once: with None if the broker has confirmed it, with a PublishError if not, with
    Unpublishable if its content is wrong. Only the thread of the event loop may use it.

    It writes nothing while the broker does not read, for example under a memory alarm. A message in the socket would
    arrive in the end, long after its delivery went back to its queue
    (test_what_is_held_under_an_alarm_is_not_sent_later).
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
        self._longest_body: int | None = None  # the limit of the broker, once it has named it

    def publish(self, message: Message, *, exchange: str, routing_key: str, then: Then) -> None:
        """Send a message. The event loop calls ``then``; if it cannot be sent, ``then`` is called at once."""
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
        self._call_back()

    def drain(self, *, within: float) -> None:
        """Wait for the confirms of sent messages, without the event loop."""
        deadline = time.monotonic() + within
        while (
            (self._sent or self._outbox) and self._connection is not None and (left := deadline - time.monotonic()) > 0
        ):
            self._read(timeout=left)
            self._write()
        self._call_back()

    def close(self) -> None:
        """Close the connection and forget the sent messages; their ``then`` is not called any more."""
        self._outbox.clear()
        self._sent.clear()
        self._settled.clear()
        self._drop()

    def _ready(self, now: float) -> None:
        if self._connection is not None and not self._sent and now - self._used_at > LONGEST_IDLE_SECONDS:
            # A firewall may have dropped a connection that was silent for long, without a word to us.
            self._drop()
        if self._connection is not None:
            return
        if now < self._not_before:
            raise Unreachable(problem="the last connect failed a moment ago")
        connection = self._connect()
        try:
            # The event loop reads the confirms, so py-amqp must not wait for them.
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
        """Return whether the channel takes messages; replace it first if a full queue has refused one.

        On RabbitMQ 3.10 that queue refuses every later message of this channel, also when it is no longer full.
        """
        if not self._is_read or self._connection is None:
            return False
        if not self._is_refused or time.monotonic() - self._channel_since < _CHANNEL_SECONDS:
            return True
        if self._sent:
            return False  # their confirms will come soon, on the old channel
        try:
            self._channel.close()
            self._use(self._connection.channel())
        except BROKER_ERRORS as exc:
            self._fail(exc)
        return self._is_read and self._connection is not None

    def _write(self) -> None:
        """Write the waiting messages, as long as the broker reads."""
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
        """Return the message as py-amqp writes it, encoded before the shared connection is touched."""
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
        self._call_back()

    def _read(self, *, timeout: float) -> None:
        """Read everything that has arrived; if nothing has, wait for the first."""
        try:
            while self._connection is not None:
                self._connection.drain_events(timeout=timeout)
                timeout = 0
        except TimeoutError:
            pass
        except BROKER_ERRORS as exc:
            self._fail(exc)

    def _on_nack(self, tag: int, multiple: bool) -> None:  # noqa: FBT001 - py-amqp's signature
        for each in self._up_to(tag, is_multiple=multiple):
            self._is_refused = True
            sent = self._sent[each]
            sent.problem = Nacked(exchange=sent.exchange, routing_key=sent.routing_key)
        self._on_ack(tag, multiple)

    def _on_return(self, _problem: Any, exchange: str, routing_key: str, message: Any) -> None:
        """Mark a returned message. basic.return comes just before the ack and has no delivery tag."""
        returned = (message.headers or {}).get("id"), exchange, routing_key
        for sent in self._sent.values():
            if (sent.message.headers.get("id"), sent.exchange, sent.routing_key) == returned:
                sent.problem = Unroutable(exchange=exchange, routing_key=routing_key)

    def _up_to(self, tag: int, *, is_multiple: bool) -> list[int]:
        return [each for each in self._sent if each <= tag] if is_multiple else [tag] if tag in self._sent else []

    def _on_ack(self, tag: int, multiple: bool) -> None:  # noqa: FBT001 - py-amqp's signature
        if self._is_probed:
            # The probe is the first message of its connection. We wait for its confirm and not for its return: there is
            # none if an operator's policy gives the exchange an alternate exchange.
            self._is_read, self._is_probed = True, False
        self._settled.extend(self._sent.pop(each) for each in self._up_to(tag, is_multiple=multiple))

    def _fail(self, exc: BaseException) -> None:
        """Drop the connection: the result of every sent message is unknown, and a late confirm could be a wrong one."""
        self._drop()
        if isinstance(exc, (AccessRefused, NotFound)) and not self._is_read:
            # The broker has answered: this user may not write there, or the exchange does not exist yet.
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
        self._connect_again()

    def _connect_again(self) -> None:
        """Connect again for the messages that were not written yet, or refuse them."""
        if not self._outbox:
            return
        try:
            self._ready(time.monotonic())
        except PublishError as problem:
            while self._outbox:
                self._refuse(self._outbox.popleft(), problem)
        else:
            self._write()

    def _call_back(self) -> None:
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
        """Look for a message without a confirm in time. After one, all messages fail: a late confirm may be another's.

        In the solo pool a task's body blocks the event loop, and after it timers run before sockets. So this first
        reads what the broker has sent meanwhile, and writes the waiting messages.
        """
        self._is_watched = False
        was_blocked = time.monotonic() - self._look_at > _GRACE_SECONDS
        self._read(timeout=0)
        self._write()
        now = time.monotonic()
        oldest = self._oldest()
        is_late = oldest is not None and oldest.due <= now
        self._looks_again = is_late and was_blocked and not self._looks_again
        if self._looks_again:
            self._look_after(_GRACE_SECONDS)
        elif is_late:
            self._fail_late(oldest, now)
        self._call_back()
        self._watch()

    def _fail_late(self, oldest: Any, now: float) -> None:
        while self._outbox and self._outbox[0].due <= now:
            late = self._outbox.popleft()
            self._refuse(late, self._unconfirmed(late))
        self._fail(self._unconfirmed(oldest))

    def _unconfirmed(self, sent: _Sent) -> Unconfirmed:
        return Unconfirmed(exchange=sent.exchange, routing_key=sent.routing_key, timeout_ms=self._timeout_ms)

    def _drop(self) -> None:
        connection, self._connection, self._channel = self._connection, None, None
        if connection is not None:
            self._hub.remove(self._descriptor)  # by its number, because a closed socket has none
            drop(connection)
