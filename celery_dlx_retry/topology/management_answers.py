"""Check answers of RabbitMQ's HTTP management API: each function checks one answer and returns its values.

A wrong answer raises ValueError. Its text quotes nothing from the server.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeGuard

from celery_dlx_retry.topology.specs import BindingSpec
from celery_dlx_retry.values.queue_names import NAME_BYTES
from celery_dlx_retry.wire.headers import LAST_MS

if TYPE_CHECKING:
    from collections.abc import Callable

#: The columns of a queue that we ask for and check.
QUEUE_COLUMNS = (
    "name", "type", "durable", "arguments", "consumers", "messages", "messages_unacknowledged",
    "head_message_timestamp", "leader", "message_stats.publish", "message_stats.publish_details.rate",
    "message_stats.deliver_get_details.rate",
)  # fmt: skip
NODE_COLUMNS = ("name", "running", "mem_alarm", "disk_free_alarm")
BINDING_COLUMNS = ("source", "destination", "destination_type", "routing_key", "arguments")

_TEXT_BYTES = 10_000
_LARGEST_COUNT = 2**53
_TEXTS = {"dead-letter-exchange", "dead-letter-routing-key", "dead-letter-strategy", "overflow", "queue-type"}
# RabbitMQ gives one of these for a value that it does not know.
_UNKNOWN: tuple[Any, ...] = (None, "", "unknown", "undefined")


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node of the cluster. With an alarm RabbitMQ blocks everybody who publishes."""

    name: str
    is_running: bool
    has_memory_alarm: bool
    has_disk_alarm: bool


def parsed(body: bytes) -> Any:
    """Return the JSON of an answer."""
    try:
        return json.loads(body, parse_constant=_refuse)
    except (ValueError, RecursionError):
        raise ValueError("is not JSON") from None


def version(answer: Any) -> str:
    """Return the broker's version."""
    number = _object(answer).get("rabbitmq_version", "")
    if not _is_text(number):
        raise ValueError("has no version")
    return str(number)


def queues(answer: Any) -> dict[str, dict[str, Any]]:
    """Return the queues by their names, each with the columns that are known."""
    return {_column(row, "name", _is_name): _queue(row) for row in _rows(answer)}


def published(answer: Any) -> dict[str, int]:
    """Return how many messages came to each queue between the oldest sample and the newest."""
    found = {}
    for row in _rows(answer):
        samples = _part(_part(row, "message_stats"), "publish_details").get("samples", [])
        counts = [it["sample"] for it in _rows(samples) if _is_count(it.get("sample"))]
        found[_column(row, "name", _is_name)] = max(counts, default=0) - min(counts, default=0)
    return found


def nodes(answer: Any) -> tuple[Node, ...]:
    """Return the nodes; one that does not run has no alarms."""
    return tuple(
        Node(
            name=_column(row, "name", _is_name),
            is_running=row.get("running") is True,
            has_memory_alarm=row.get("mem_alarm") is True,
            has_disk_alarm=row.get("disk_free_alarm") is True,
        )
        for row in _rows(answer)
    )


def bindings(answer: Any) -> set[BindingSpec]:
    """Return the bindings from an exchange to a queue."""
    found = set()
    for row in _rows(answer):
        exchange, queue, kind, routing_key = (_column(row, it, _is_name) for it in BINDING_COLUMNS[:4])
        if kind == "queue":
            arguments = tuple(sorted((key, _plain(value)) for key, value in _arguments(row).items()))
            found.add(BindingSpec(exchange=exchange, queue=queue, routing_key=routing_key, arguments=arguments))
    return found


def policies(answer: Any) -> tuple[dict[str, Any], ...]:
    """Return the policies, or operator policies, of a virtual host."""
    return tuple(
        {key: _column(it, key, is_right) for key, is_right in _POLICY.items()}
        | {"definition": _arguments(it, "definition")}
        for it in _rows(answer)
    )


def _queue(row: dict[str, Any]) -> dict[str, Any]:
    facts = _known(row, _QUEUE) | {"arguments": _arguments(row)}
    # The sender of a message chooses this time, so a wrong one is not the fault of the server.
    if _is_count(at := row.get("head_message_timestamp")) and at <= LAST_MS // 1000:
        facts["head_message_timestamp"] = at
    stats = _part(row, "message_stats")
    # How many messages were published to this queue since the broker counts: a restart begins at 0 again.
    if published := _known(stats, {"publish": _is_count}):
        facts["published"] = published["publish"]
    rates = {it: _known(_part(stats, it), {"rate": _is_rate}) for it in ("publish_details", "deliver_get_details")}
    return facts | {"message_stats": {column: rate for column, rate in rates.items() if rate}}


def _known(row: dict[str, Any], columns: dict[str, Callable[[Any], bool]]) -> dict[str, Any]:
    """Return those of these columns that have a value; check each."""
    known = (column for column in columns if row.get(column) not in _UNKNOWN)
    return {column: _column(row, column, columns[column]) for column in known}


def _rows(answer: Any) -> list[dict[str, Any]]:
    if not isinstance(answer, list):
        raise ValueError("is not a list")  # noqa: TRY004 - one error for every wrong shape
    return [_object(row) for row in answer]


def _object(value: Any) -> dict[str, Any]:
    if value == []:  # RabbitMQ writes an empty object like this
        return {}
    if not isinstance(value, dict):
        raise ValueError("has something else where an object must be")  # noqa: TRY004 - see above
    return value


def _part(row: dict[str, Any], column: str) -> dict[str, Any]:
    return _object({} if (value := row.get(column)) in _UNKNOWN else value)


def _arguments(row: dict[str, Any], column: str = "arguments") -> dict[str, Any]:
    """Return arguments or a definition. Only the values that we use are checked; others may be any JSON."""
    arguments = _part(row, column)
    for key, value in arguments.items():
        name = key.removeprefix("x-")
        is_right = _is_name if name in _TEXTS else _is_encodable
        if not (_is_name(key) and is_right(value)):
            raise ValueError("has an argument of a wrong kind")
    return arguments


def _is_encodable(value: Any) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except (UnicodeEncodeError, RecursionError):
        return False
    return True


def _column(row: dict[str, Any], column: str, is_right: Callable[[Any], bool]) -> Any:
    if not is_right(value := row.get(column)):
        raise ValueError(f"has a wrong value in {column!r}")
    return value


def _is_rate(value: Any) -> bool:
    return _is_count(value) or (isinstance(value, float) and math.isfinite(value) and value >= 0)


def _is_name(value: Any) -> TypeGuard[str]:
    return _is_text(value, most=NAME_BYTES)


def _is_text(value: Any, *, most: int = _TEXT_BYTES) -> TypeGuard[str]:
    try:
        return isinstance(value, str) and len(value.encode()) <= most
    except UnicodeEncodeError:  # half of a surrogate pair
        return False


def _is_integer(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < _LARGEST_COUNT


def _is_count(value: Any) -> TypeGuard[int]:
    return _is_integer(value) and value >= 0


def _plain(value: Any) -> str | int | bool:
    return value if isinstance(value, (str, int)) else json.dumps(value)


def _refuse(_constant: str) -> None:
    raise ValueError("NaN and Infinity are not JSON")


_QUEUE: dict[str, Callable[[Any], bool]] = {
    "type": _is_name,
    "leader": _is_name,
    "durable": lambda it: isinstance(it, bool),
    **dict.fromkeys(("consumers", "messages", "messages_unacknowledged"), _is_count),
}
_POLICY: dict[str, Callable[[Any], bool]] = {
    "name": _is_name,
    "pattern": _is_text,
    "apply-to": _is_name,
    "priority": _is_integer,
}
