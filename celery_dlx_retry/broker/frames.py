"""Messages as frames: encode a message before it is published, and read messages that py-amqp cannot decode.

RabbitMQ passes on every header table that it can parse. py-amqp decodes tables by recursion, times into datetimes and
texts as UTF-8. One message with headers nested 1,000 levels deep, a time after the year 9999 or a property in Latin-1
raises an error out of the connection's read: the worker ends, and so does the next one that gets the message.
"""

from __future__ import annotations

import struct
from ssl import SSLWantReadError, SSLWantWriteError
from typing import TYPE_CHECKING, Any

from amqp import Connection as AMQPConnection
from amqp import spec
from amqp.basic_message import Message as BasicMessage
from amqp.exceptions import AMQPError, FrameSyntaxError
from amqp.serialization import loads

from celery_dlx_retry.celery_compat import encode_properties, wrap_receive
from celery_dlx_retry.errors import Unpublishable
from celery_dlx_retry.wire.header_size import HEADERS_BYTES
from celery_dlx_retry.wire.headers import COPIES, without_copies
from celery_dlx_retry.wire.unreadable import UNREADABLE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from kombu.connection import Connection

    from celery_dlx_retry.wire.message import Message

#: Deeper tables and arrays are not decoded. py-amqp encodes with two calls per level, and Python allows 1,000 calls.
MOST_LEVELS = 200
# The fewest bytes per level: the type of an array, and its length.
_LEVEL_BYTES = 5

_METHOD, _HEADER = 1, 2
_DELIVER, _GET_OK = (struct.pack(">HH", *method) for method in (spec.Basic.Deliver, spec.Basic.GetOk))
_TAG_BYTES = 8 + 1  # delivery tag, redelivered

_CONTENT_BYTES = 12  # class, weight, size of the body
_HEADERS = 0x2000
# The flag, the name and the type of each property in the order of the wire.
_FLAGGED = [(0x8000 >> number, name, kind) for number, (name, kind) in enumerate(BasicMessage.PROPERTIES)]
_PROPERTIES = {flag: name for flag, name, _ in _FLAGGED}
# Bytes of the properties that are numbers: an octet, or eight.
_NUMBERS = {flag: 1 if kind == "o" else 8 for flag, _, kind in _FLAGGED if kind in {"o", "L"}}
# Bytes of a header's value by its type. Texts, bytes, tables and arrays have their length in front.
_SIZES = {b"V": 0, b"t": 1, b"b": 1, b"B": 1, b"s": 2, b"U": 2, b"u": 2, b"I": 4, b"i": 4, b"f": 4, b"D": 5}
_SIZES |= dict.fromkeys((b"l", b"L", b"d", b"T"), 8)
_WITH_LENGTH = (b"S", b"x", b"F", b"A")
# What py-amqp raises for a value that it cannot write.
_ENCODING_ERRORS = (
    *(struct.error, FrameSyntaxError, RecursionError, OverflowError),
    *(AttributeError, LookupError, TypeError, ValueError),
)
# What py-amqp's decoder raises. OSError: of a time that the platform does not know.
_UNDECODABLE = (ValueError, OverflowError, OSError, RecursionError, LookupError, struct.error, AMQPError)


def encoded(  # noqa: PLR0913, PLR0917 - the order of Kombu's prepare_message
    channel: Any,
    body: bytes | str,
    priority: Any,
    content_type: str | None,
    content_encoding: str | None,
    headers: Mapping[str, Any],
    properties: dict[str, Any],
) -> Any:
    """Return the message for ``basic_publish``, without CC and BCC. Raise Unpublishable if AMQP cannot carry it.

    No byte is in the socket yet: an error in the middle of a publish would cost the connection.
    """
    if not COPIES.isdisjoint(headers):
        headers = without_copies(headers)
    try:
        message = channel.prepare_message(body, priority, content_type, content_encoding, headers, properties)
        encode_properties(message)
    except _ENCODING_ERRORS as exc:
        raise Unpublishable(what="its content", problem=f"raises {type(exc).__name__}") from exc
    return message


def bytes_of(message: Message) -> bytes:
    """Return the body as on the wire: py-amqp decodes a body with an encoding, and takes an empty one for text."""
    body = message.body
    if not isinstance(body, str):
        return bytes(body or b"")
    try:
        return body.encode(message.content_encoding or "utf-8") if body else b""
    except (LookupError, UnicodeError):
        return body.encode("utf-8", "surrogatepass")


def end_reads_at_half_a_frame(transport: Any) -> None:
    """Let a read with ``timeout=0`` end when the socket is empty; py-amqp keeps the half frame for the next read.

    Without it py-amqp polls the socket for the other half in a hot loop, and the process does nothing else
    (test_a_confirm_that_stops_in_the_middle_of_its_frame_does_not_stop_the_event_loop).
    """

    def or_time_out(receive: Callable[[int], bytes]) -> Callable[[int], bytes]:
        def receive_or_time_out(size: int) -> bytes:
            try:
                return receive(size)
            except (BlockingIOError, SSLWantReadError, SSLWantWriteError) as exc:
                raise TimeoutError from exc

        return receive_or_time_out

    wrap_receive(transport, or_time_out)


def accept_undecodable_headers(connection: Connection) -> None:
    """Let an open connection deliver messages with headers that py-amqp cannot decode.

    Such headers are removed from the message, and their bytes are in the header ``dlx-unreadable``.
    """
    amqp = connection.connection
    if isinstance(amqp, AMQPConnection) and not isinstance(amqp.on_inbound_frame, _Guarded):
        amqp.on_inbound_frame = _Guarded(amqp.on_inbound_frame)


class _Guarded:
    """Called before py-amqp's handler of frames."""

    __slots__ = ("_handle",)

    def __init__(self, handle: Any) -> None:
        self._handle = handle

    def __call__(self, frame: tuple[int, int, bytes]) -> Any:
        kind, channel, payload = frame
        if kind == _METHOD:
            return self._handle((kind, channel, with_readable_address(payload)))
        if kind != _HEADER:
            return self._handle(frame)
        if _may_be_deep(payload):
            payload = mended(payload)
        try:
            return self._handle((kind, channel, payload))
        except _UNDECODABLE:
            # py-amqp handles a message without a body in the same call. If its properties are right, raise the error.
            readable = mended(payload)
            if readable is payload:
                raise
        return self._handle((kind, channel, readable))


def with_readable_address(payload: bytes) -> bytes:
    """Return the arguments of a method; an exchange or routing key that is not UTF-8 gets question marks."""
    method = payload[:4]
    if method == _DELIVER:
        start = 4 + 1 + payload[4] + _TAG_BYTES  # behind the consumer tag
    elif method == _GET_OK:
        start = 4 + _TAG_BYTES
    else:
        return payload
    middle = start + 1 + payload[start]
    end = middle + 1 + payload[middle]
    exchange, routing_key = payload[start + 1 : middle], payload[middle + 1 : end]
    if exchange.isascii() and routing_key.isascii():
        return payload
    return payload[:start] + _utf8(exchange) + _utf8(routing_key) + payload[end:]


def mended(payload: bytes) -> bytes:
    """Return a content header that py-amqp can decode; the same object if it can decode this one."""
    properties: dict[int, bytes] = {}
    headers: list[bytes] = []
    unreadable: dict[bytes, bytes] = {}
    try:
        for flag, raw in _properties(payload):
            if flag == _HEADERS:
                for name, value in _entries(raw):
                    if _is_readable(value):
                        headers.append(_short(name) + value)
                    else:
                        unreadable[name] = value
            elif flag in _NUMBERS or _is_text(raw[1:]):
                properties[flag] = raw
            else:
                unreadable[_PROPERTIES[flag].encode()] = raw[1:]
    except (LookupError, struct.error):
        # Not a table. RabbitMQ does not accept such a message from its publisher.
        properties, headers, unreadable = {}, [], {b"properties": payload[_CONTENT_BYTES:]}
    if not unreadable:
        return payload
    has_room = len(payload) <= HEADERS_BYTES
    kept = b"".join(_short(name) + b"x" + _long(raw if has_room else b"") for name, raw in unreadable.items())
    headers.append(_short(UNREADABLE.encode()) + b"F" + _long(kept))
    properties[_HEADERS] = _long(b"".join(headers))
    flags = struct.pack(">H", sum(properties))
    return payload[:_CONTENT_BYTES] + flags + b"".join(properties[flag] for flag in _PROPERTIES if flag in properties)


def _properties(payload: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield each property with its flag, as it is on the wire."""
    (flags,) = struct.unpack_from(">H", payload, _CONTENT_BYTES)
    offset = _CONTENT_BYTES + 2
    for flag in _PROPERTIES:
        if flags & flag:
            if flag == _HEADERS:
                size = 4 + struct.unpack_from(">I", payload, offset)[0]
            else:
                size = _NUMBERS.get(flag) or 1 + payload[offset]
            yield flag, payload[offset : offset + size]
            offset += size


def _entries(table: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the names of a table, each with its type and value as on the wire."""
    offset = 4
    while offset < len(table):
        start = offset + 1 + table[offset]
        end = _end(table, start)
        yield table[offset + 1 : start], table[start:end]
        offset = end


def _end(data: bytes, offset: int) -> int:
    """Return the end of the value that begins here with its type."""
    kind = data[offset : offset + 1]
    if kind in _WITH_LENGTH:
        (size,) = struct.unpack_from(">I", data, offset + 1)
        return offset + 5 + int(size)
    return offset + 1 + _SIZES[kind]


def _is_readable(value: bytes) -> bool:
    if _may_be_deep(value) and _is_deep(value):
        return False
    try:
        loads("F", _long(_short(b"") + value), 0)
    except _UNDECODABLE:
        return False
    return True


def _may_be_deep(data: bytes) -> bool:
    """Return whether tables and arrays may be nested too deeply; takes a microsecond for ordinary headers."""
    return (
        len(data) > MOST_LEVELS * _LEVEL_BYTES
        and data.count(b"F") + data.count(b"A") > MOST_LEVELS
        # Behind the type of each is a length of four bytes, and a frame has less than 16 MB.
        and data.count(b"F\0") + data.count(b"A\0") > MOST_LEVELS
    )


def _is_deep(value: bytes) -> bool:
    """Return whether they are nested deeper than the limit; without recursion."""
    inside: list[tuple[int, bool]] = []  # the end of each table or array around the place, and whether it is a table
    offset = 0
    while offset < len(value):
        while inside and offset >= inside[-1][0]:
            inside.pop()
        if inside and inside[-1][1]:
            offset += 1 + value[offset]
        kind, end = value[offset : offset + 1], _end(value, offset)
        if kind in {b"F", b"A"}:
            inside.append((end, kind == b"F"))
            if len(inside) > MOST_LEVELS:
                return True
            end = offset + 5
        offset = end
    return False


def _is_text(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


def _utf8(text: bytes) -> bytes:
    return _short(text.decode("utf-8", "replace").replace("\ufffd", "?").encode())


def _short(text: bytes) -> bytes:
    return bytes((len(text),)) + text


def _long(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data
