"""Read and write our headers: the history of attempts, and the others."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from celery_dlx_retry.values.durations import is_count
from celery_dlx_retry.wire.header_numbers import (
    LAST_MS,
    MOST_COUNT,
    count_of,
    is_time_ms,
    time_ms_of,
)
from celery_dlx_retry.wire.header_size import HEADERS_BYTES, size_of

if TYPE_CHECKING:
    from collections.abc import Mapping

#: All attempts so far as JSON: ``[[attempt, at_ms, error, delay_ms, worker], …]``, the first one and the newest.
#: A retry that a rule of the policy granted has two more: the name of the rule, and which of its retries it is.
HISTORY = "dlx-history"
#: When the first attempt failed, in ms since 1970; a policy's deadline counts from here.
FIRST_FAILED_AT = "dlx-first-failed-at"
#: How often this message crashed a pool process.
CRASHES = "dlx-crashes"
#: How often the message was taken out of a dead-letter queue and tried again.
REPLAYS = "dlx-replays"
#: When a circuit breaker last sent the message to wait without running it, in ms since 1970.
PARKED_AT = "dlx-parked-at"
#: The exchange and the routing key that the sender published to, if not to the work queue by its name.
EXCHANGE, ROUTING_KEY = "dlx-exchange", "dlx-routing-key"
#: With two digits behind it: the message waits on this rung of the ladder.
RUNG = "dlx-rung-"
#: Body and representation of the arguments before an operator edited them.
ORIGINAL = "dlx-original"

#: RabbitMQ routes a copy of the message to each name in these headers, so that a retry with them would multiply. It
#: looks for exactly these names; py-amqp writes a name of bytes as it is.
COPIES = frozenset(("CC", "BCC", b"CC", b"BCC"))

_BROKERS = ("x-death", "x-first-death-", "x-last-death-", "x-delivery-count", "x-acquired-count", RUNG)
_HISTORY_LENGTH = 20
_ENTRY_BYTES = 200
_RULE_BYTES = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One failed attempt: when, which error, which worker, and how long its retry waited (None: no retry).

    If a rule granted the retry, ``rule`` is its name, and ``rule_retry`` counts its retries.
    """

    attempt: int
    at_ms: int
    error: str
    delay_ms: int | None
    worker: str
    rule: str = ""
    rule_retry: int = 0


def describe(error: BaseException) -> str:
    """Return ``Type: text`` in one line for a header, also if the error's ``__str__`` raises."""
    name = type(error).__name__
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - user code; the dead letter matters more than its text
        text = "<unprintable>"
    text = " ".join(text.encode("utf-8", "replace").decode().splitlines())
    return f"{name}: {text}" if text else name


def history_of(headers: Mapping[str, Any]) -> tuple[Failure, ...]:
    """Return the failed attempts; none if the header is missing, foreign or forged."""
    return tuple(
        Failure(
            attempt=attempt,
            at_ms=at_ms,
            error=error,
            delay_ms=delay_ms,
            worker=worker,
            rule=rule[0] if rule else "",
            rule_retry=rule[1] if rule else 0,
        )
        for attempt, at_ms, error, delay_ms, worker, *rule in _rows(headers)
    )


def _rows(headers: Mapping[str, Any]) -> list[list[Any]]:
    text = headers.get(HISTORY)
    if text is None:
        return []
    try:
        rows = json.loads(text)
        if type(rows) is list and len(rows) <= _HISTORY_LENGTH and all(map(_is_as_written, rows)):
            return rows
        return [
            [
                _count(attempt),
                _time_ms(at_ms),
                cut(str(error), _ENTRY_BYTES),
                None if delay_ms is None else _time_ms(delay_ms),
                cut(str(worker), _ENTRY_BYTES),
                *_mended_rule(rule),
            ]
            for attempt, at_ms, error, delay_ms, worker, *rule in rows[-_HISTORY_LENGTH:]
        ]
    except (TypeError, ValueError, KeyError, RecursionError, OverflowError):
        return []


def _is_as_written(row: Any) -> bool:
    """Return whether a row is as we write it. Nearly all are."""
    attempt, at_ms, error, delay_ms, worker, *rule = row
    return (
        type(row) is list
        and type(attempt) is type(at_ms) is int
        and (delay_ms is None or (type(delay_ms) is int and 0 <= delay_ms <= LAST_MS))
        and 0 <= attempt <= MOST_COUNT
        and 0 <= at_ms <= LAST_MS
        and type(error) is type(worker) is str
        and len(error) <= _ENTRY_BYTES
        and len(worker) <= _ENTRY_BYTES
        and error.isascii()
        and worker.isascii()
        and (not rule or _is_rule_as_written(*rule))
    )


def _is_rule_as_written(name: Any, retry: Any) -> bool:
    return (
        type(name) is str
        and len(name) <= _RULE_BYTES
        and name.isascii()
        and type(retry) is int
        and 0 < retry <= MOST_COUNT
    )


def _mended_rule(rule: list[Any]) -> list[Any]:
    if not rule:
        return []
    name, retry = rule
    return [cut(str(name), _RULE_BYTES), _count(retry)]


def starts(key: Any, prefixes: str | tuple[str, ...]) -> bool:
    """Return whether the name of a header is a text that starts with one of these."""
    return isinstance(key, str) and key.startswith(prefixes)  # py-amqp leaves a key that is not UTF-8 as bytes


def own_headers(headers: Mapping[str, Any]) -> dict[str, Any]:
    """Return the headers that we wrote."""
    return {key: value for key, value in headers.items() if starts(key, "dlx-")}


def crashes_of(headers: Mapping[str, Any]) -> int:
    """Return how often this message has crashed a pool process."""
    return count_of(headers, CRASHES)


def is_returned_retry(headers: Mapping[str, Any]) -> bool:
    """Whether a retry has waited in its lane. The clock of the broker says so, and its eta need not be asked."""
    return bool(headers.get("retries")) and "x-death" in headers


def replays_of(headers: Mapping[str, Any]) -> int:
    """Return how often this message was replayed."""
    return count_of(headers, REPLAYS)


def parked_at_ms_of(headers: Mapping[str, Any]) -> int:
    """Return when a breaker last parked this message; 0 if never."""
    return time_ms_of(headers, PARKED_AT)


def address_of(headers: Mapping[str, Any], *, queue: str) -> tuple[str, str]:
    """Return the exchange and the routing key that the sender used for a message of this work queue."""
    exchange, routing_key = headers.get(EXCHANGE), headers.get(ROUTING_KEY)
    if isinstance(exchange, str) and isinstance(routing_key, str):
        return exchange, routing_key
    return "", queue


def with_address(headers: Mapping[str, Any], *, exchange: Any, routing_key: Any, queue: str) -> dict[str, Any]:
    """Return the headers of a message that waits for this queue, with the address that its sender used."""
    is_plain = (exchange, routing_key) == ("", queue)
    if is_plain and EXCHANGE not in headers:
        return dict(headers)  # nearly every retry
    kept = {key: value for key, value in headers.items() if key not in {EXCHANGE, ROUTING_KEY}}
    if not is_plain and isinstance(exchange, str) and isinstance(routing_key, str):
        kept |= {EXCHANGE: exchange, ROUTING_KEY: routing_key}
    return kept


def first_failed_at_ms(headers: Mapping[str, Any], *, now_ms: int) -> int:
    """Return when the first attempt failed: now, if the header is missing or wrong."""
    at_ms = time_ms_of(headers, FIRST_FAILED_AT)
    return at_ms if 0 < at_ms <= now_ms else now_ms


def with_failure(headers: Mapping[str, Any], failure: Failure) -> dict[str, Any]:
    """Return the headers after one more failed attempt, without those that the broker wrote."""
    error, worker = cut(failure.error, _ENTRY_BYTES), cut(failure.worker, _ENTRY_BYTES)
    rule = [cut(failure.rule, _RULE_BYTES), failure.rule_retry] if failure.rule else []
    rows = [*_rows(headers), [failure.attempt, failure.at_ms, error, failure.delay_ms, worker, *rule]]
    if len(rows) > _HISTORY_LENGTH:
        del rows[1 : len(rows) - _HISTORY_LENGTH + 1]
    kept = {
        **without_broker_headers(headers),
        HISTORY: "",
        FIRST_FAILED_AT: (
            first_failed_at_ms(headers, now_ms=failure.at_ms) if FIRST_FAILED_AT in headers else failure.at_ms
        ),
    }
    room = HEADERS_BYTES - size_of(kept)
    kept[HISTORY] = _json(rows)
    while rows and len(kept[HISTORY]) > room:  # the message matters more than its history
        del rows[1 if len(rows) > 1 else 0]
        kept[HISTORY] = _json(rows)
    return kept


# Made once: json.dumps() makes a new encoder for each call with options.
_json = json.JSONEncoder(separators=(",", ":"), ensure_ascii=True).encode


def without_broker_headers(headers: Mapping[str, Any]) -> dict[str, Any]:
    """Return the headers without those of an earlier delivery: RabbitMQ's ``x-*``, the rungs, CC and BCC.

    With a copied x-death RabbitMQ 3 sees a cycle and drops the message. A copied x-delivery-count is wrong. A copied CC
    multiplies the message.
    """
    # It is called three times for every retry; a call of starts() for each key takes longer.
    return {
        key: value
        for key, value in headers.items()
        if key not in COPIES and not (isinstance(key, str) and key.startswith(_BROKERS))
    }


def without_copies(headers: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the headers without CC and BCC."""
    if COPIES.isdisjoint(headers):
        return headers
    return {key: value for key, value in headers.items() if key not in COPIES}


def cut(text: str, size: int) -> str:
    """Return at most ``size`` bytes of valid UTF-8; a longer text loses its middle."""
    if len(text) <= size and text.isascii():
        return str(text)
    data = text.encode("utf-8", "replace")
    if len(data) <= size:
        return data.decode()
    mark = b"\n[...]\n"
    if size <= len(mark) * 2:
        return data[:size].decode("utf-8", "ignore")
    head = (size - len(mark)) // 3
    tail = size - len(mark) - head
    return (data[:head].decode("utf-8", "ignore").encode() + mark).decode() + data[-tail:].decode("utf-8", "ignore")


def _count(value: Any) -> int:
    if not is_count(value) or value > MOST_COUNT:
        raise ValueError  # a forged one
    return value


def _time_ms(value: Any) -> int:
    if not is_time_ms(value):
        raise ValueError  # a forged one
    return value
