"""Make headers fit one frame: drop our own headers, and those that are only for people, before the message is lost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery_dlx_retry.wire.dead_record import record_key
from celery_dlx_retry.wire.header_size import FREE_BYTES, size_of
from celery_dlx_retry.wire.headers import EXCHANGE, FIRST_FAILED_AT, HISTORY, PARKED_AT, ROUTING_KEY
from celery_dlx_retry.wire.trace_header import TRACE
from celery_dlx_retry.wire.unreadable import UNREADABLE

if TYPE_CHECKING:
    from collections.abc import Mapping

# The least important first: our own headers, then texts that Celery writes for people.
_DETAILS = (
    *(record_key("traceback"), TRACE, HISTORY, EXCHANGE, ROUTING_KEY),
    *map(record_key, ("error", "error_type", "worker", "dead_letter_key", "task", "task_id", "died_at_ms", "attempts")),
    *("argsrepr", "kwargsrepr", "origin", FIRST_FAILED_AT, PARKED_AT, UNREADABLE),
)
_QUEUE, _REASON = record_key("queue"), record_key("reason")


def trimmed(headers: Mapping[str, Any], *, room: int) -> dict[str, Any]:
    """Return the headers without as many of the unimportant ones as it takes to fit; those of the sender stay.

    The broker took the sender's headers in one frame. If ours make it longer, the broker may close the connection.
    """
    kept = dict(headers)
    # A message that is not yet a dead letter needs the free bytes for its reason.
    excess = size_of(kept) - (room if _REASON in kept else room - FREE_BYTES)
    for key in (*_DETAILS, *(key for key, value in headers.items() if value is None), _QUEUE, _REASON):
        if excess <= 0:
            break
        if key in kept:
            excess -= size_of({key: kept.pop(key)}) - size_of({})
    return kept
