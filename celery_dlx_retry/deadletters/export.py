"""Write a dead letter as one line of JSON, and read it again without loss.

AMQP has bytes, times and decimals, and JSON does not: they are written as ``{"$bytes": …}`` and the like.
"""

from __future__ import annotations

import base64
import json
import math
from datetime import datetime, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from celery_dlx_retry.errors import InvalidExportLine
from celery_dlx_retry.wire.message import Message

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_dlx_retry.deadletters.letter import DeadMessage

#: The first field of every line; the number changes when an old reader would misunderstand a new line.
FORMAT = "celery-dlx-retry dead letter 1"
#: Properties that are fields of their own in an export and in ``dead show``.
OWN_FIELDS = {"application_headers", "content_type", "content_encoding"}


def to_line(letter: DeadMessage) -> str:
    """Return a dead letter as one line, without a newline."""
    message = letter.message
    return json.dumps(
        {
            "format": FORMAT,
            "queue": letter.queue,
            "content_type": message.content_type,
            "content_encoding": message.content_encoding,
            "properties": {key: shown(value) for key, value in message.properties.items() if key not in OWN_FIELDS},
            "headers": shown(dict(message.headers)),
            "body": shown(_text_or_bytes(message.body)),
        }
    )


def from_line(line: str | bytes, *, number: int) -> tuple[str, Message]:
    """Return the dead-letter queue and the message of a line; raise InvalidExportLine, which names the line."""
    try:
        letter = json.loads(line)
        if not isinstance(letter, dict) or letter.get("format") != FORMAT:
            raise InvalidExportLine(line=number, problem=f"its format is not {FORMAT!r}")
        queue, kind, encoding = letter["queue"], letter["content_type"], letter["content_encoding"]
        body, headers, properties = (_unpacked(letter[name]) for name in ("body", "headers", "properties"))
        body = body.encode() if isinstance(body, str) else body
    except (KeyError, TypeError, AttributeError, ValueError, ArithmeticError, OSError, RecursionError) as exc:
        raise InvalidExportLine(line=number, problem=f"it cannot be read ({type(exc).__name__})") from exc
    for name, value, wanted in (
        ("queue", queue, str),
        ("content_type", kind, (str, type(None))),
        ("content_encoding", encoding, (str, type(None))),
        ("properties", properties, dict),
        ("headers", headers, dict),
        ("body", body, bytes),
    ):
        if not isinstance(value, wanted):
            raise InvalidExportLine(line=number, problem=f"its {name} has the wrong type {type(value).__name__}")
    message = Message(body=body, content_type=kind, content_encoding=encoding, headers=headers, properties=properties)
    return queue, message


def _text_or_bytes(body: bytes | str) -> bytes | str:
    if isinstance(body, str):
        return body
    try:
        return body.decode()
    except UnicodeDecodeError:
        return body


def shown(value: Any) -> Any:  # noqa: PLR0911 - one line per type
    """Return the value of a header as JSON: for an export, for ``--json`` and for people."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return {"$bytes": base64.b64encode(bytes(value)).decode()}
    if isinstance(value, datetime):
        utc = value.replace(tzinfo=timezone.utc) if value.tzinfo is None else value
        return {"$time": int(utc.timestamp())}
    if isinstance(value, Decimal):
        return {"$decimal": str(value)}
    if isinstance(value, float) and not math.isfinite(value):
        return {"$float": repr(value)}
    if isinstance(value, dict):
        if all(isinstance(key, str) for key in value) and not (len(value) == 1 and next(iter(value)).startswith("$")):
            return {key: shown(item) for key, item in value.items()}
        return {"$table": [[shown(key), shown(item)] for key, item in value.items()]}
    if isinstance(value, (list, tuple)):
        return [shown(item) for item in value]
    return value


def _unpacked(value: Any) -> Any:
    if isinstance(value, list):
        return [_unpacked(item) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        ((mark, packed),) = value.items()
        if mark in _UNPACK:
            return _UNPACK[mark](packed)
    return {key: _unpacked(item) for key, item in value.items()}


_UNPACK: dict[str, Callable[[Any], Any]] = {
    "$bytes": lambda packed: base64.b64decode(packed, validate=True),
    # Without a time zone, as py-amqp reads and writes them.
    "$time": lambda packed: datetime.fromtimestamp(packed, timezone.utc).replace(tzinfo=None),
    "$decimal": Decimal,
    "$float": float,
    "$table": lambda packed: {_unpacked(key): _unpacked(item) for key, item in packed},
}
