"""Publish with a confirm: mandatory, and safe after a fork.

A publish returns when the broker has confirmed the message, and raises a PublishError otherwise.
"""

from __future__ import annotations

import os
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from amqp.exceptions import AccessRefused, ChannelError, MessageNacked, NotFound, PreconditionFailed
from kombu.compression import compress

from celery_dlx_retry.broker.connection import BROKER_ERRORS, MESSAGE_ERRORS, drop, open_connection
from celery_dlx_retry.broker.frames import bytes_of, encoded
from celery_dlx_retry.celery_compat import HookedProducer
from celery_dlx_retry.errors import (
    HeadersTooLong,
    Nacked,
    PublishForbidden,
    Unconfirmed,
    Unpublishable,
    Unreachable,
    Unroutable,
)
from celery_dlx_retry.wire.header_size import check_name, check_properties, has_room, room_beside, size_of
from celery_dlx_retry.wire.headers import without_broker_headers
from celery_dlx_retry.wire.message import KEPT_PROPERTIES, Message
from celery_dlx_retry.wire.trimmed_headers import trimmed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from kombu.connection import Connection

    Mend = Callable[[Connection], None]

#: The routing key and the body of a message without a queue. It has a body because a blocked connection stops there.
#: When the broker answers, it reads what we write.
PROBE = "dlx.v1.probe"
_NO_ROUTE = 312
PERSISTENT = 2
LONGEST_IDLE_SECONDS = 60.0
_PROPERTIES = KEPT_PROPERTIES | {"content_type", "content_encoding", "user_id"}


class Publisher:
    """A pool of connections in confirm mode, one for each thread that publishes at the same time.

    It does not use kombu.pools: those close their sockets in every forked child with shutdown(), which also cuts the
    connection of the parent (test_a_fork_leaves_the_parents_connection_alone).
    """

    def __init__(self, connect: Callable[[], Connection], *, confirm_timeout_ms: int, probe_at: str = "") -> None:
        self._connect = connect
        self._probe_exchange = probe_at
        self.confirm_timeout_ms = confirm_timeout_ms
        self._idle: list[tuple[Connection, float]] = []
        self._pid = os.getpid()
        self._may_probe = True

    @contextmanager
    def producer(
        self, *, mend: Mend | None = None, headers: Mapping[str, Any] | None = None, queue: str = ""
    ) -> Iterator[ConfirmedProducer]:
        """Yield a Kombu producer whose publishes are confirmed.

        If a message finds no queue, ``mend`` makes what is missing. Every message gets these ``headers``. ``queue`` is
        the work queue of a task that waits: a monitor that patches Kombu's ``publish()`` sees it and not the lane.
        """
        with self.connection() as connection:
            yield ConfirmedProducer(
                connection, confirm_timeout_ms=self.confirm_timeout_ms, mend=mend, headers=headers or {}, queue=queue
            )

    @contextmanager
    def connection(self) -> Iterator[Connection]:
        """Yield a connection of the pool, for this thread alone."""
        connection = self._acquire()
        with _dropped_after_an_error(connection):
            yield connection
        self._idle.append((connection, time.monotonic()))

    def reach(self, pauses: Iterable[float]) -> None:
        """Connect; try again after each pause. Nothing is published, so nothing is duplicated."""
        for pause in pauses:
            try:
                with self.connection():
                    return
            except Unreachable:  # noqa: PERF203
                time.sleep(pause)  # noqa: TID251 - the caller's own pace
        with self.connection():
            return

    def close(self) -> None:
        """Close idle connections; the next publish connects again."""
        while self._idle:
            drop(self._idle.pop()[0])

    def _acquire(self) -> Connection:
        if self._pid != os.getpid():
            # The sockets belong to the process that forked us: forget them, do not close them.
            self._idle, self._pid = [], os.getpid()
        while True:
            try:
                connection, since = self._idle.pop()
            except IndexError:
                return self._connected()
            # A firewall may have dropped a connection that was silent for long, without a word to us.
            if time.monotonic() - since < LONGEST_IDLE_SECONDS and _is_alive(connection):
                return connection
            drop(connection)

    def _connected(self) -> Connection:
        connection = self._connect()
        with _dropped_after_an_error(connection):
            open_connection(connection, timeout_ms=self.confirm_timeout_ms)
            if self._may_probe:
                self._probe(connection)
        return connection

    def _probe(self, connection: Connection) -> None:
        """Raise Unconfirmed if the broker does not read what we write, for example under a memory alarm.

        A message in the socket would arrive in the end, long after its delivery went back to its queue, and each new
        connection would send another copy (test_under_a_memory_alarm_no_confirm_is_made_up_and_no_copy_is_sent).
        """
        seconds = self.confirm_timeout_ms / 1000
        channel = connection.default_channel
        returned = channel.events["basic_return"]
        returned.add(_expect)  # or py-amqp raises, and takes the confirm for that of the next message
        try:
            message = channel.prepare_message(PROBE.encode())
            channel.basic_publish(
                message,
                exchange=self._probe_exchange,
                routing_key=PROBE,
                mandatory=True,
                timeout=seconds,
                confirm_timeout=seconds,
            )
        except TimeoutError as exc:
            address = {"exchange": self._probe_exchange, "routing_key": PROBE}
            raise Unconfirmed(**address, timeout_ms=self.confirm_timeout_ms) from exc
        except (AccessRefused, NotFound) as exc:
            # The broker has answered: this user may not write there, or the exchange does not exist yet.
            self._may_probe = isinstance(exc, NotFound)
            drop(connection)
            open_connection(connection, timeout_ms=self.confirm_timeout_ms)
        else:
            returned.discard(_expect)


class ConfirmedProducer(HookedProducer):
    """The ``producer=`` for Celery's ``send_task``. It overrides every option that could lose a message."""

    def __init__(
        self,
        connection: Connection,
        *,
        confirm_timeout_ms: int,
        mend: Mend | None,
        headers: Mapping[str, Any],
        queue: str = "",
    ) -> None:
        super().__init__(connection, auto_declare=False)
        self._confirm_timeout_ms = confirm_timeout_ms
        self._mend = mend
        self._way_headers = headers
        self._shown = {"exchange": "", "routing_key": queue} if queue else {}
        self._address: dict[str, str] = {}
        #: How many messages the broker has confirmed to this producer.
        self.confirmed = 0

    def publish(self, body: Any, *, exchange: str, routing_key: str, **options: Any) -> None:
        """Publish a message of Celery's, and wait for the confirm. If it has no queue, ``mend`` and publish again."""
        properties = {name: value for name, value in options.items() if name in _PROPERTIES}
        headers = self._fitting(without_broker_headers(options.get("headers") or {}), properties, routing_key)
        # Kombu would publish again after a timeout, and under a memory alarm each copy would arrive in the end. We
        # declare objects ourselves. A task's ``expires`` stays in its header: in a lane the AMQP property would shorten
        # the wait.
        own = {"headers": headers, "delivery_mode": PERSISTENT, "retry": False, "declare": None, "expiration": None}
        self._address = {"exchange": exchange, "routing_key": routing_key}
        with self._translated_errors():
            super().publish(body, **{**options, **self._address, **self._shown, **own, **self._waiting})

    def publish_message(self, message: Message, *, exchange: str, routing_key: str, as_found: bool = False) -> None:
        """Publish a message as it is, and wait for the confirm.

        Kombu takes no part in it: monitors patch its ``publish()``, and take each call for a new task. ``as_found``
        keeps the broker's headers: for a dead letter that goes into a dead-letter queue again.
        """
        properties = {name: value for name, value in message.properties.items() if name in KEPT_PROPERTIES}
        kind = message.content_type or "application/data"
        shown = {**properties, "content_type": kind, "content_encoding": message.content_encoding}
        headers = message.headers if as_found else without_broker_headers(message.headers)
        headers = self._fitting(headers, shown, routing_key, is_copy=True)
        body = bytes_of(message)
        if message.compression:
            body, headers["compression"] = compress(body, message.compression)
        priority = properties.pop("priority", 0)
        properties["delivery_mode"] = PERSISTENT
        content = (body, priority, kind, message.content_encoding or "binary", headers, properties)
        self._address = {"exchange": exchange, "routing_key": routing_key}
        with self._translated_errors():
            self.send(content, **self._address, **self._waiting)

    @property
    def _waiting(self) -> dict[str, Any]:
        """Options to wait for the confirm; without ``mandatory`` an unroutable message is confirmed and dropped."""
        seconds = self._confirm_timeout_ms / 1000
        return {"mandatory": True, "confirm_timeout": seconds, "timeout": seconds}

    def _fitting(
        self, headers: Mapping[str, Any], properties: Mapping[str, Any], routing_key: str, *, is_copy: bool = False
    ) -> dict[str, Any]:
        """Return the headers to publish; the ones that matter least are left out if a frame has no room for all.

        ``is_copy``: the message came from the broker, so its headers fit a frame without ours.
        """
        fitting = {**headers, **self._way_headers}
        check_properties(properties)
        check_name("its routing key", routing_key)
        room = room_beside(properties)
        if not has_room(fitting, room=room):
            fitting = trimmed(fitting, room=room)
            if not is_copy and not has_room(fitting, room=room):
                raise HeadersTooLong(size=size_of(fitting), room=room)
        return fitting

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        """Raise what Kombu, py-amqp and the broker raise as one of our errors."""
        try:
            yield
        except MessageNacked as exc:
            raise Nacked(**self._address) from exc
        except NotFound as exc:
            raise Unroutable(**self._address) from exc
        except AccessRefused as exc:
            raise PublishForbidden(problem=str(exc)) from exc
        except PreconditionFailed as exc:
            # Its size, or the name of another user.
            raise Unpublishable(what="the broker", problem=f"answers {exc.reply_text}") from exc
        except ChannelError as exc:
            if exc.reply_code == _NO_ROUTE:
                raise Unroutable(**self._address) from exc
            raise Unreachable(problem=str(exc)) from exc
        except TimeoutError as exc:
            raise Unconfirmed(**self._address, timeout_ms=self._confirm_timeout_ms) from exc
        except MESSAGE_ERRORS:
            raise
        except BROKER_ERRORS as exc:
            raise Unreachable(problem=str(exc) or type(exc).__name__) from exc

    def send(self, message: tuple[Any, ...], *, exchange: str, routing_key: str, **options: Any) -> None:  # noqa: ARG002
        """Publish to the address of the caller, whatever Kombu was shown.

        The second publish is here, too: a monitor that patches Kombu's ``publish()`` sees one publish of one message.
        """
        try:
            self._send_once(message, options)
        except Unroutable:
            # The broker said that no queue has it, so a second publish makes no copy.
            if self._mend is None:
                raise
            self._reconnect()
            self._mend(self.connection)
            self._send_once(message, options)

    def _send_once(self, message: tuple[Any, ...], options: dict[str, Any]) -> None:
        with self._translated_errors():
            self.channel.basic_publish(encoded(self.channel, *message), **self._address, **options)
        self.confirmed += 1

    def _reconnect(self) -> None:
        connection = self.connection
        drop(connection)
        open_connection(connection, timeout_ms=self._confirm_timeout_ms)
        self.revive(connection)


class MessageCapture(ConfirmedProducer):
    """Keeps the messages that Celery publishes with it, for the worker's main process to publish.

    Make one for each call: threads that shared one would mix up their messages.
    """

    def __init__(self, connection: Connection, queue: str = "") -> None:
        super().__init__(connection, confirm_timeout_ms=0, mend=None, headers={}, queue=queue)
        self.messages: list[Message] = []

    def written(self, message: Message) -> Message:
        """Return a received message as it would be published."""
        self.publish_message(message, exchange="", routing_key="")
        return self.messages[-1]

    def send(self, message: tuple[Any, ...], **_: Any) -> None:
        """Keep the message."""
        body, priority, content_type, content_encoding, headers, properties = message
        self.messages.append(
            Message(
                body=body,
                content_type=content_type,
                content_encoding=content_encoding,
                headers=headers,
                properties={**properties, "priority": priority},
            )
        )


def _expect(*_: Any) -> None:
    """Ignore the returned probe: no queue has its routing key."""


@contextmanager
def _dropped_after_an_error(connection: Connection) -> Iterator[None]:
    """Drop the connection after any error, and raise errors of the broker as PublishError."""
    try:
        yield
    except BaseException as exc:
        # After an error the channel may take the late confirm of this message for the one of the next message, and a
        # time limit may have left half a frame in the socket. A connection is cheap; a wrong confirm loses a task.
        drop(connection)
        if isinstance(exc, AccessRefused):
            raise PublishForbidden(problem=str(exc)) from exc
        if isinstance(exc, BROKER_ERRORS) and not isinstance(exc, MESSAGE_ERRORS):
            raise Unreachable(problem=str(exc) or type(exc).__name__) from exc
        raise


def _is_alive(connection: Connection) -> bool:
    """Return whether the connection is open: read what the broker has sent since, which may be a close."""
    try:
        connection.drain_events(timeout=0)
    except TimeoutError:
        return bool(connection.connected)
    except BROKER_ERRORS:
        return False
    return bool(connection.connected)
