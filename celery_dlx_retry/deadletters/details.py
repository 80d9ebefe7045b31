"""Everything about one dead letter: links, headers, properties, arguments. A pickle is never opened."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery_dlx_retry.deadletters.export import OWN_FIELDS, shown
from celery_dlx_retry.deadletters.letter import facts_of
from celery_dlx_retry.errors import Unreadable
from celery_dlx_retry.wire.dead_record import original_of
from celery_dlx_retry.wire.task_body import links_of, payload_of

if TYPE_CHECKING:
    from celery_dlx_retry.deadletters.letter import DeadMessage

_ARGUMENTS = ("argsrepr", "kwargsrepr")
# A quorum queue counts deliveries, and reading a queue is one.
_DELIVERY_COUNTS = ("x-delivery-count", "x-acquired-count")


def details_of(letter: DeadMessage, *, with_arguments: bool = False) -> dict[str, Any]:
    """Return the fields of ``dead show --json``."""
    message = letter.message
    facts = {
        **facts_of(letter),
        "content_type": message.content_type,
        "content_encoding": message.content_encoding,
        "body_bytes": len(message.body),
        "edited": original_of(message.headers) is not None,
        "links": _links(letter),
        # Without those that other fields have, and without the representations of the arguments.
        "headers": {
            str(key): shown(value)
            for key, value in message.headers.items()
            if key not in _ARGUMENTS and key not in _DELIVERY_COUNTS and not str(key).startswith("dlx-")
        },
        "properties": {key: shown(it) for key, it in message.properties.items() if key not in OWN_FIELDS},
    }
    return {**facts, "arguments": _arguments(letter)} if with_arguments else facts


def _links(letter: DeadMessage) -> list[str] | None:
    """Return links, chain and chord; None if the body is not JSON."""
    try:
        return list(links_of(letter.message))
    except Unreadable:
        return None


def _arguments(letter: DeadMessage) -> dict[str, Any]:
    try:
        payload = payload_of(letter.message)
    except Unreadable as exc:
        headers = letter.message.headers
        written = {name: str(headers[name]) for name in _ARGUMENTS if headers.get(name) is not None}
        return written | {"not decoded": exc.problem}
    return {"args": payload.args, "kwargs": payload.kwargs}
