"""Read and change the body of a task without running foreign code.

Only JSON is decoded, up to a limit, and never a pickle. Parsed JSON takes up to 25 times its bytes in memory.
"""

from __future__ import annotations

import bz2
import json
import lzma
import re
import zlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from celery_dlx_retry.errors import Unreadable
from celery_dlx_retry.wire.dead_record import original_of
from celery_dlx_retry.wire.headers import ORIGINAL

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_dlx_retry.wire.message import Message

#: The longest body that is parsed, after decompression.
MOST_BYTES = 16 * 2**20
# The deepest nesting that is parsed. Python allows 1,000 nested calls, and the caller needs some of them.
_MOST_LEVELS = 200
# Of a longer body only the end is parsed to find callbacks, chain and chord.
_LINK_BYTES = 2**20
_SIGNS = re.compile(rb'\\.|["\[\]{}]', re.DOTALL)
# The longest original body that an edited letter keeps: all headers travel in one frame.
_ORIGINAL_BYTES = 60_000
_LINKS = ("callbacks", "errbacks", "chain", "chord")
_NOT_CELERYS = "its body is not what Celery writes"
_DECOMPRESSORS: dict[str, Callable[[], Any]] = {
    "application/x-gzip": zlib.decompressobj,  # Kombu's name for it
    "application/x-bz2": bz2.BZ2Decompressor,
    "application/x-lzma": lzma.LZMADecompressor,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Payload:
    """Arguments of a task, and ``embed``: its callbacks, errbacks, chain and chord."""

    args: list[Any]
    kwargs: dict[str, Any]
    embed: dict[str, Any]


def payload_of(message: Message) -> Payload:
    """Decode a JSON body of Celery's protocol 2; raise Unreadable for any other."""
    text = _text(message)
    if len(text) > MOST_BYTES:
        raise Unreadable(problem=f"its body has {len(text)} bytes, and no more than {MOST_BYTES} are parsed")
    if _is_deep(text):
        raise Unreadable(problem=f"its body is nested deeper than {_MOST_LEVELS} levels")
    try:
        args, kwargs, embed = json.loads(text)
    except (ValueError, TypeError, RecursionError) as exc:
        raise Unreadable(problem=_NOT_CELERYS) from exc
    if not isinstance(args, list) or not isinstance(kwargs, dict) or not isinstance(embed, dict):
        raise Unreadable(problem=_NOT_CELERYS)
    return Payload(args=args, kwargs=kwargs, embed=embed)


def links_of(message: Message) -> tuple[str, ...]:
    """Return which of callbacks, errbacks, chain and chord a task has, without parsing long arguments."""
    body = _text(message)
    embed = payload_of(message).embed if len(body) <= _LINK_BYTES else _embed_at_the_end(body)
    return tuple(name for name in _LINKS if embed.get(name))


def _embed_at_the_end(body: bytes) -> dict[str, Any]:
    """Return the last of the three parts of a body, as Celery writes it."""
    tail = body[-_LINK_BYTES:].rstrip()
    start = tail.rfind(b'{"callbacks":')
    try:
        embed = json.loads(tail[start:-1]) if start >= 0 else None
    except (ValueError, RecursionError) as exc:
        raise Unreadable(problem=_NOT_CELERYS) from exc
    if not isinstance(embed, dict):
        raise Unreadable(problem=_NOT_CELERYS)
    return embed


def _is_deep(body: bytes) -> bool:
    """Return whether it is nested deeper than the limit; without recursion."""
    depth = 0
    if body.count(b"[") + body.count(b"{") > _MOST_LEVELS:
        is_string = False
        for match in _SIGNS.finditer(body):
            sign = match.group()
            if sign == b'"':
                is_string = not is_string
            elif not is_string and len(sign) == 1:
                depth += 1 if sign in b"[{" else -1
                if depth > _MOST_LEVELS:
                    return True
    return False


def detached(message: Message) -> Message:
    """Return the task alone: without callbacks, chain, chord and result."""
    payload = payload_of(message)
    headers = dict(message.headers)
    for name in ("group", "group_index"):
        if name in headers:
            headers[name] = None
    headers["ignore_result"] = True
    properties = {key: value for key, value in message.properties.items() if key != "reply_to"}
    changed = replace(message, headers=headers, properties=properties)
    return with_payload(changed, replace(payload, embed=dict.fromkeys(_LINKS)))


def with_payload(message: Message, payload: Payload) -> Message:
    """Return the message with another body, compressed like the old one."""
    headers = dict(message.headers)
    compression = headers.pop("compression", None)
    body = json.dumps([payload.args, payload.kwargs, payload.embed]).encode()
    return replace(message, body=body, headers=headers, content_encoding="utf-8", compression=compression)


def edited(message: Message, payload: Payload, *, argsrepr: str, kwargsrepr: str) -> Message:
    """Return the message with other arguments; a header keeps the first ones."""
    headers = dict(message.headers)
    if original_of(headers) is None:
        body = message.body.encode() if isinstance(message.body, str) else message.body
        if len(body) > _ORIGINAL_BYTES:
            problem = f"its body has {len(body)} bytes, and the original is kept in a header of {_ORIGINAL_BYTES}"
            raise Unreadable(problem=problem)
        kept = {"body": body, "content_encoding": message.content_encoding}
        headers[ORIGINAL] = kept | {key: headers.get(key) for key in ("compression", "argsrepr", "kwargsrepr")}
    headers |= {"argsrepr": argsrepr, "kwargsrepr": kwargsrepr}
    return with_payload(message.with_headers(headers), payload)


def restored(message: Message) -> Message:
    """Return the message as it was before the first edit."""
    headers = dict(message.headers)
    original = original_of(headers)
    if original is None or not isinstance(original.get("body"), (bytes, str)):
        raise Unreadable(problem="it was never edited")
    del headers[ORIGINAL]
    for key in ("compression", "argsrepr", "kwargsrepr"):
        headers.pop(key, None)
        if original.get(key) is not None:
            headers[key] = original[key]
    body = original["body"]
    return replace(
        message,
        body=body.encode() if isinstance(body, str) else bytes(body),  # py-amqp decodes valid UTF-8 into text
        content_encoding=original.get("content_encoding"),
        headers=headers,
    )


def _text(message: Message) -> bytes:
    """Return the JSON of a body, decompressed."""
    if message.content_type != "application/json":
        raise Unreadable(problem=f"its body is {message.content_type or 'of no known type'}, not JSON")
    compression = message.headers.get("compression")
    body = message.body.encode("utf-8", "surrogatepass") if isinstance(message.body, str) else message.body
    if not compression:
        return body
    make = _DECOMPRESSORS.get(str(compression))
    if make is None:
        raise Unreadable(problem=f"its body is compressed with {compression}")
    decompressor = make()
    try:
        data: bytes = decompressor.decompress(body, MOST_BYTES)
    except (zlib.error, OSError, lzma.LZMAError) as exc:
        raise Unreadable(problem="its body cannot be decompressed") from exc
    if not decompressor.eof:
        raise Unreadable(problem=f"its body is cut, or larger than {MOST_BYTES} bytes")
    return data
