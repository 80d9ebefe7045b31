"""The one frame in which all headers of a message travel: how much is in it, and what makes way in a full one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

FRAME_BYTES = 131_072
# The frame's own, the content header's, the length of the table, and small properties: delivery mode, priority …
_OVERHEAD_BYTES = 8 + 14 + 4 + 40
_FEW_BYTES = 100
_SHORT_INT = 2**31 - 1

# Ours, least worth first; then what Celery writes for people to read; then the least that a dead letter tells.
_DETAILS = (
    *("dlx-dead-traceback", "dlx-history", "dlx-exchange", "dlx-routing-key"),
    *("dlx-dead-error", "dlx-dead-error-type", "dlx-dead-worker"),
    *("dlx-dead-family", "dlx-dead-task", "dlx-dead-task-id", "dlx-dead-died-at-ms", "dlx-dead-attempts"),
    *("argsrepr", "kwargsrepr", "origin", "dlx-first-failed-at", "dlx-parked-at"),
)
_LAST = ("dlx-dead-queue", "dlx-dead-reason")


def room_beside(properties: Mapping[str, Any]) -> int:
    """How many bytes of headers fit beside these properties; never more."""
    texts = (value for value in properties.values() if isinstance(value, str))
    return FRAME_BYTES - _OVERHEAD_BYTES - sum(1 + len(text.encode("utf-8", "replace")) for text in texts)


def has_room(headers: Mapping[str, Any], *, room: int) -> bool:
    """Whether a retry has room for the little that it cannot be without: a count of crashes, and the reason of its end.

    Who is told no makes a dead letter of it now.
    """
    return size_of(headers) + _FEW_BYTES <= room


def fitted(headers: Mapping[str, Any], *, room: int) -> dict[str, Any]:
    """The headers, without as much of what is not the sender's as it takes to fit: the message matters more.

    The broker took them from the sender in one frame. With ours in them it may close the connection, each time.
    """
    kept = dict(headers)
    # What is no dead letter yet may become one, and have no more than this frame for its reason.
    excess = size_of(kept) - (room if _LAST[1] in kept else room - _FEW_BYTES)
    for key in (*_DETAILS, *(key for key, value in headers.items() if value is None), *_LAST):
        if excess <= 0:
            break
        if key in kept:
            excess -= size_of({key: kept.pop(key)}) - size_of({})
    return kept


def size_of(value: Any) -> int:
    """How many bytes this takes in a header table; never fewer."""
    # Twice for every retry, hence the commonest first, and Mapping last: it asks abc.
    if isinstance(value, str):
        return 5 + (len(value) if value.isascii() else len(value.encode("utf-8", "surrogatepass")))
    if value is None or isinstance(value, int):
        return 1 if value is None else 2 if isinstance(value, bool) else 5 if abs(value) <= _SHORT_INT else 9
    if isinstance(value, (list, tuple)):
        return 5 + sum(map(size_of, value))
    if isinstance(value, (bytes, bytearray, memoryview)):
        return 5 + len(value)
    if isinstance(value, (dict, Mapping)):
        return _size_of_table(value)
    return 9


def _size_of_table(table: Mapping[Any, Any]) -> int:
    size = 5  # and no call for what most of it is: texts, and nothing
    for key, value in table.items():
        size += 1 + len(key) if type(key) is str and key.isascii() else size_of(key) - 4
        if value is None:
            size += 1
        elif type(value) is str and value.isascii():
            size += 5 + len(value)
        else:
            size += size_of(value)
    return size
