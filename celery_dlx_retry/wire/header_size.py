"""Measure the headers of a message: all of them travel in one frame.

Every retry is measured before it is published. This also finds values that AMQP cannot carry.
"""

from __future__ import annotations

import calendar
import operator
from datetime import datetime
from decimal import Decimal
from math import isfinite
from typing import TYPE_CHECKING, Any

from celery_dlx_retry.errors import Unpublishable
from celery_dlx_retry.values.queue_names import NAME_BYTES

if TYPE_CHECKING:
    from collections.abc import Mapping

FRAME_BYTES = 131_072
#: The most bytes of headers that we write ourselves. The rest of the frame is for properties and overhead.
HEADERS_BYTES = 120_000
#: A retry must leave so many bytes free: for a count of crashes, and for the reason if it becomes a dead letter.
FREE_BYTES = 100
# Of the frame, the content header, the length of the table, and small properties: delivery mode, priority …
_OVERHEAD_BYTES = 8 + 14 + 4 + 40
_SHORT_INT = 2**31 - 1
_LONG_INT = 2**63
_LARGEST_SCALE = 255
_NUMBERS = {"priority": 2**8, "delivery_mode": 2**8, "timestamp": 2**64}


def room_beside(properties: Mapping[str, Any]) -> int:
    """Return how many bytes of headers fit beside these properties; never too many."""
    texts = (value for value in properties.values() if isinstance(value, str))
    return FRAME_BYTES - _OVERHEAD_BYTES - sum(1 + len(text.encode("utf-8", "surrogatepass")) for text in texts)


def has_room(headers: Mapping[str, Any], *, room: int) -> bool:
    """Return whether these headers leave the free bytes that a retry needs. If not, make a dead letter now."""
    return size_of(headers) + FREE_BYTES <= room


def check_properties(properties: Mapping[str, Any]) -> None:
    """Raise Unpublishable for a property that AMQP cannot carry."""
    for name, value in properties.items():
        if value is None:
            continue
        if name in _NUMBERS:
            _check_number(name, value)
        elif isinstance(value, str | bytes):
            check_name(f"the property {name}", value)
        else:
            raise Unpublishable(what=f"the property {name}", problem=f"is a {type(value).__name__} and must be a text")


def _check_number(name: str, value: Any) -> None:
    try:
        is_sound = 0 <= operator.index(value) < _NUMBERS[name]
    except TypeError:
        is_sound = False
    if not is_sound:
        wanted = f"must be a whole number from 0 to {_NUMBERS[name] - 1}"
        raise Unpublishable(what=f"the property {name}", problem=f"is a {type(value).__name__} and {wanted}")


def check_name(what: str, text: str | bytes) -> None:
    """Raise Unpublishable for a routing key, or another short string of AMQP, that is too long."""
    size = len(text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text)
    if size > NAME_BYTES:
        raise Unpublishable(what=what, problem=f"has {size} bytes and must not have more than {NAME_BYTES}")


def carried(headers: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the headers without those that AMQP cannot carry."""
    try:
        size_of(headers)
    except Unpublishable:
        return {key: value for key, value in headers.items() if _is_carried({key: value})}
    return headers


def _is_carried(headers: Mapping[str, Any]) -> bool:
    try:
        size_of(headers)
    except Unpublishable:
        return False
    return True


def size_of(value: Any) -> int:
    """Return the bytes of this value in a header table, or a few more. Raise Unpublishable if AMQP cannot carry it."""
    try:
        return _size_of(value)
    except RecursionError:
        raise _unfit("is nested too deeply") from None


def _size_of(value: Any) -> int:
    # Called twice for every retry, so the most common type comes first.
    if isinstance(value, str):
        return 5 + (len(value) if value.isascii() else len(value.encode("utf-8", "surrogatepass")))
    if value is None or isinstance(value, int):
        return 1 if value is None else _size_of_int(value)
    if isinstance(value, (list, tuple)):
        return 5 + sum(map(_size_of, value))
    if isinstance(value, bytes):
        return 5 + len(value)
    if isinstance(value, dict):
        return _size_of_table(value)
    return _size_of_rare(value)


def _size_of_table(table: Mapping[Any, Any]) -> int:
    size = 5  # most values are texts, small numbers and None: these need no call
    for key, value in table.items():
        if type(key) is str and key.isascii() and len(key) <= NAME_BYTES:
            size += 1 + len(key)
        else:
            size += _size_of_key(key)
        if value is None:
            size += 1
        elif type(value) is str and value.isascii():
            size += 5 + len(value)
        elif type(value) is int and -_SHORT_INT <= value <= _SHORT_INT:
            size += 5
        else:
            try:
                size += _size_of(value)
            except Unpublishable as unfit:
                raise Unpublishable(what=f"the header {key!r:.80}", problem=unfit.problem) from None
            except RecursionError:
                problem = "is nested too deeply, or contains itself"
                raise Unpublishable(what=f"the header {key!r:.80}", problem=problem) from None
    return size


def _size_of_key(key: Any) -> int:
    if not isinstance(key, (str, bytes)):
        raise _unfit(f"has a {type(key).__name__} as the name of a value and must have a text")
    check_name("the name of a header", key)
    return size_of(key) - 4


def _size_of_int(value: int) -> int:
    if isinstance(value, bool):
        return 2
    if not -_LONG_INT <= value < _LONG_INT:
        raise _unfit("is a number of more than 64 bits")
    return 5 if abs(value) <= _SHORT_INT else 9


def _size_of_rare(value: Any) -> int:
    if isinstance(value, float):
        if not isfinite(value):
            raise _unfit("is not a finite number, on which RabbitMQ closes the connection")
    elif isinstance(value, Decimal):
        _check_decimal(value)
    elif isinstance(value, datetime):
        if calendar.timegm(value.utctimetuple()) < 0:
            raise _unfit("is a time before 1970")
    else:
        raise _unfit(f"is a {type(value).__name__}, which AMQP cannot carry")
    return 9


def _check_decimal(value: Decimal) -> None:
    exponent = value.as_tuple().exponent
    if not isinstance(exponent, int) or not -_LARGEST_SCALE <= exponent <= 0:
        raise _unfit("is a decimal number without an end, or in steps of more than 1")
    if abs(value.scaleb(-exponent)) > _SHORT_INT:
        raise _unfit("is a decimal number of more than 32 bits")


def _unfit(problem: str) -> Unpublishable:
    return Unpublishable(what="a header", problem=problem)
