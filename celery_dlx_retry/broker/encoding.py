"""Encode a message before it is published. Every publish of a task's message uses it."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

from amqp.exceptions import FrameSyntaxError

from celery_dlx_retry.celery_compat import encode_properties
from celery_dlx_retry.errors import Unpublishable
from celery_dlx_retry.wire.headers import COPIES, without_copies

if TYPE_CHECKING:
    from collections.abc import Mapping

    from celery_dlx_retry.wire.message import Message

# What py-amqp raises for a value that it cannot write.
_ENCODING_ERRORS = (
    *(struct.error, FrameSyntaxError, RecursionError, OverflowError),
    *(AttributeError, LookupError, TypeError, ValueError),
)


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
