"""What tests of every tier share. Import it as ``from support import eventually``."""

from __future__ import annotations

import re
import socket
import struct
import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from amqp import Message as RawMessage
from kombu.connection import Connection

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from celery_dlx_retry.testing import RabbitMQ

T = TypeVar("T")


def as_user(url: str, login: str) -> str:
    """The same broker for another user, given as ``user:password``."""
    return re.sub("//[^/@]*@", f"//{login}@", url)


def eventually(check: Callable[[], T], *, within: float = 20.0) -> T:
    """Poll until ``check`` returns something true, and return that."""
    deadline = time.monotonic() + within
    while not (value := check()):
        if time.monotonic() > deadline:
            message = f"still {value!r} after {within} s"
            raise AssertionError(message)
        time.sleep(0.02)  # noqa: TID251 - the one place that waits
    return value


def put(  # noqa: PLR0913 - all that a message may have
    url: str,
    ids: Iterable[int],
    *,
    exchange: str = "",
    routing_key: str,
    headers: Any = None,
    may_refuse: bool = False,
) -> None:
    """Publish one message per id, all at once; return when the broker has confirmed them all.

    ``may_refuse``: to fill a queue. A full one counts late, and refuses the second message or a later one.
    """
    unconfirmed: set[int] = set()

    def on_ack(tag: int, multiple: bool) -> None:  # noqa: FBT001 - py-amqp's signature
        unconfirmed.difference_update([one for one in unconfirmed if one == tag or (multiple and one < tag)])

    with Connection(url) as connection:
        channel = connection.channel()
        channel.confirm_select()
        channel.events["basic_ack"].add(on_ack)
        if may_refuse:
            channel.events["basic_nack"].add(on_ack)
        for tag, number in enumerate(ids, 1):
            message = RawMessage(
                f"{number}", delivery_mode=2, application_headers={**(headers or {}), "id": f"{number}"}
            )
            unconfirmed.add(tag)
            channel.basic_publish(message, exchange=exchange, routing_key=routing_key, mandatory=True)
        while unconfirmed:
            connection.drain_events(timeout=30)


@contextmanager
def proxied(
    url: str, *, to_broker: Callable[[bytes], bytes] = bytes, to_client: Callable[[bytes], bytes] = bytes
) -> Iterator[str]:
    """A URL that leads to the same broker; what goes by is what these functions make of it."""
    parts = urlsplit(url)
    listener = socket.create_server(("127.0.0.1", 0))

    def pass_on(source: socket.socket, target: socket.socket, change: Callable[[bytes], bytes]) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                target.sendall(change(data))
        for end in (source, target):
            end.close()

    def accept() -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                broker = socket.create_connection((parts.hostname, parts.port))
                for way in ((client, broker, to_broker), (broker, client, to_client)):
                    threading.Thread(target=pass_on, args=way, daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    yield url.replace(f":{parts.port}", f":{listener.getsockname()[1]}")
    with suppress(OSError):
        listener.shutdown(socket.SHUT_RDWR)
    listener.close()


@contextmanager
def silenced(broker: RabbitMQ, queue: str) -> Iterator[None]:
    """A quorum queue that does not answer, as while it recovers: its only member takes no message from its mailbox."""
    member = (
        f'{{ok, Q}} = rabbit_amqqueue:lookup(rabbit_misc:r(<<"/">>, queue, <<"{queue}">>)), '
        "{Name, _} = amqqueue:get_pid(Q), "
    )
    broker.ctl("eval", f"{member} sys:suspend(whereis(Name)).")
    try:
        yield
    finally:
        broker.ctl("eval", f"{member} sys:resume(whereis(Name)).")


def shown(value: object) -> str:
    """A value as the name of a test: short, and the same in every process."""
    if isinstance(value, (set, frozenset)):
        value = sorted(value)  # their order is another one in a process that has compiled the module itself
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))[:60]


class RawProperties(RawMessage):
    """A message whose properties and headers are these bytes: py-amqp would not encode all that RabbitMQ takes."""

    def __init__(self, body: bytes, properties: bytes) -> None:
        super().__init__(body)
        self._raw = properties

    def _serialize_properties(self) -> bytes:
        return self._raw


def raw_properties(headers: dict[str, bytes], texts: dict[int, bytes] | None = None) -> bytes:
    """Properties as they are on the wire: headers by name, with type and value, and texts by the flag of each."""
    table = b"".join(bytes((len(name),)) + name.encode() + value for name, value in headers.items())
    found = {0x2000: struct.pack(">I", len(table)) + table}
    found |= {flag: bytes((len(text),)) + text for flag, text in (texts or {}).items()}
    return struct.pack(">H", sum(found)) + b"".join(found[flag] for flag in sorted(found, reverse=True))


def raw_text(text: str) -> bytes:
    """A text as the value of a header on the wire."""
    return b"S" + struct.pack(">I", len(text)) + text.encode()


def raw_nest(levels: int, kind: str = "table") -> bytes:
    """Tables in tables, or arrays in arrays, as the value of a header on the wire."""
    value = b"I\0\0\0\5"
    for _ in range(levels):
        inner = b"\1k" + value if kind == "table" else value
        value = (b"F" if kind == "table" else b"A") + struct.pack(">I", len(inner)) + inner
    return value


CORRELATION_ID = 0x0400
#: Messages that RabbitMQ takes and py-amqp cannot decode: their headers, their texts, and what cannot be read.
UNDECODABLE: dict[str, tuple[dict[str, bytes], dict[int, bytes], str]] = {
    "tables nested 5,000 levels": ({"x": raw_nest(5_000)}, {}, "x (35005 bytes)"),
    "arrays nested 20,000 levels": ({"x": raw_nest(20_000, "array")}, {}, "x (100005 bytes)"),
    "a frame full of tables": ({"x": raw_nest(18_000)}, {}, "x (too long to keep)"),
    "a time after the last year": ({"x": b"T\x7f" + b"\xff" * 7}, {}, "x (9 bytes)"),
    "a time of 64 bits": ({"x": b"T" + b"\xff" * 8}, {}, "x (9 bytes)"),
    "a property in Latin-1": ({}, {CORRELATION_ID: b"gr\xfcn"}, "correlation_id (4 bytes)"),
}
