"""Headers and bodies that no honest producer writes; AMQP and RabbitMQ take all of them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tests.fuzz import values

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.fuzz.inputs import Input

#: Deeper than any honest table, and than what py-amqp's recursive reader survives by itself.
DEEP = (100, 480, 1_000, 5_000)
CELERYS = (
    *("task", "id", "root_id", "parent_id", "group", "group_index", "retries", "timelimit", "eta", "expires", "lang"),
    *("argsrepr", "kwargsrepr", "origin", "shadow", "meth", "ignore_result", "replaced_task_nesting", "stamps"),
    *("stamped_headers", "compression", "delivery_info", "properties", "headers", "hostname", "reply_to", "is_eager"),
    *("called_directly", "args", "kwargs", "chord", "chain", "callbacks", "errbacks", "utc", "loglevel", "priority"),
    *("correlation_id", "redelivered", "_protected", "_dlx_attempt", "dlx_wait", "CC", "BCC", "fuzz-deep"),
)
COUNTS = ("dlx-replays", "dlx-crashes", "dlx-first-failed-at", "dlx-parked-at", "retries", "group_index")
RECORD = ("reason", "task", "task-id", "queue", "family", "worker", "attempts", "died-at-ms", "error-type", "error")
OURS = (
    *COUNTS,
    *(f"dlx-dead-{name}" for name in (*RECORD, "traceback", "unheard-of")),
    *("dlx-history", "dlx-exchange", "dlx-routing-key", "dlx-original", "dlx-rule-retries", "dlx-rung-03"),
    *("x-death", "x-delivery-count", "x-first-death-queue", "x-last-death-reason", "x-delay"),
)
#: What has hurt before.
FAVOURITES = ("CC", "BCC", "dlx-replays", "dlx-crashes", "retries", "dlx-dead-queue", "dlx-original", "fuzz-deep")
EXPIRED = "2001-01-01T00:00:00+00:00"
HISTORIES = (
    "[" * 5000,
    json.dumps([[1, 2, "e" * 20_000, 3, "w"]]),
    json.dumps([[10**30] * 5] * 50),
    json.dumps([[2**63 - 1, 2**63 - 1, "e", 2**63 - 1, "w"]]),
    json.dumps([[-1, -1, "e", -1, "w", "rule", -1]]),
    "[1]",
    "[[NaN, Infinity, 1, 1e999, null]]",
)
BODIES = (
    *("", "null", "[]", "{}", "[[],{}]", "[null,null,null]", '"abc"', "[" * 2000, "\x00", "{", '[[],{"self":1},{}]'),
    "[[1e999, NaN],{},{}]",  # no errbacks and chains: Celery sends these, and they are messages of their own
    *('[["\\ud800"],{},{}]', '[["\\u001b[31m\\u202e"],{},{}]', b"\x80\x04N.", b"\xff\xfe"),
)
CONTENT = ("", "x", "application/x-python-serialize", "application/x-yaml", "text/plain", "application/data")
ENCODINGS = ("", "utf-8", "binary", "utf-7", "nonsense", "utf-16")


def _death(it: Input, queues: Sequence[str]) -> list[dict[str, Any]]:
    return [
        {
            "queue": it.choice(queues),
            "reason": values.text(it),
            "count": values.whole(it),
            "exchange": "",
            "routing-keys": [values.text(it)],
            "time": values.TIMES[0],
        }
    ]


def _one_of(*choices: Any) -> Any:
    return lambda it, _queues: it.choice(choices)


_QUEUES = ("CC", "BCC")
_QUEUE = ("dlx-dead-queue", "dlx-dead-family", "dlx-routing-key")
#: What a forger would write into each; the queues are those that he would like to reach.
_FORGED: dict[str, Any] = {
    **dict.fromkeys(_QUEUES, lambda it, queues: it.sample(list(queues), it.randrange(1, len(queues) + 1))),
    **dict.fromkeys(_QUEUE, lambda it, queues: it.choice(queues)),
    **dict.fromkeys(COUNTS, lambda it, _queues: values.number(it)),
    "fuzz-deep": lambda it, _queues: values.nested(it.choice(DEEP)),
    "dlx-history": _one_of(*HISTORIES),
    "dlx-original": _one_of(b"[[],{},{}]", '{"body":"x"}', {"body": b"[]", "argsrepr": 5}, {"body": "[[9],{},{}]"}),
    "x-death": _death,
    "expires": _one_of(EXPIRED, "9999-12-31T23:59:59", "soon", 0),
    "eta": _one_of("2001-01-01T00:00:00", "0001-01-01T00:00:00+14:00", "10000-01-01", 0, "soon", None, [1]),
    "timelimit": _one_of([None], [1, 2, 3], ["a", "b"], [-1, -1], {"a": 1}, [[], []], [2**63 - 1, 2**63 - 1]),
}
#: RabbitMQ refuses any other CC, and an eta of any other text may be years away.
_ALWAYS = (*_QUEUES, "fuzz-deep", "eta")


def header(it: Input, key: str, queues: Sequence[str]) -> Any:
    """A hostile value for a header."""
    if key in _FORGED and (key in _ALWAYS or it.is_one_in(2)):
        return _FORGED[key](it, queues)
    return values.tree(it)


def forge(it: Input, sound: dict[str, Any], queues: Sequence[str], *, ours: bool) -> dict[str, Any]:
    """The headers, with one to four of them replaced, added or taken away."""
    found = dict(sound)
    keys = OURS if ours and not it.is_one_in(4) else (*CELERYS, *OURS)
    for key in it.sample(keys, it.randrange(1, 5)):
        found[key] = header(it, key, queues)
    if it.is_one_in(3):
        key = it.choice(FAVOURITES)
        found[key] = header(it, key, queues)
    if it.is_one_in(6):
        found.pop(it.choice(sorted(sound)))
    if it.is_one_in(10):
        found[values.text(it)[:60] or "x"] = values.tree(it)
    return found


def content(it: Input) -> dict[str, Any]:
    """Body, type and encoding: sound ones, mostly."""
    if not it.is_one_in(4):
        return {}
    return {
        "body": it.choice(BODIES),
        "content_type": it.choice([*CONTENT, "application/json", "application/json"]),
        "content_encoding": it.choice([*ENCODINGS, "utf-8", "utf-8"]),
    }


def properties(it: Input) -> dict[str, Any]:
    """Of AMQP; not those that the broker itself refuses or obeys (user_id, expiration)."""
    if not it.is_one_in(5):
        return {}
    return {
        it.choice(["correlation_id", "reply_to", "app_id", "type"]): values.text(it)[:60],
        "priority": it.choice([0, 9, 255]),
        "timestamp": it.choice([0, 1, 2**63 - 1, 2**64 - 1]),
    }


def shown(headers: dict[str, Any]) -> str:
    """For the report of a failure: deep tables are cut, for repr() would not survive them."""
    return repr(_cut(headers, 6))


def _cut(value: Any, depth: int) -> Any:
    if not depth and isinstance(value, (dict, list)):
        return "…"
    if isinstance(value, dict):
        return {key: _cut(item, depth - 1) for key, item in value.items()}
    if isinstance(value, list):
        return [_cut(item, depth - 1) for item in value[:10]]
    return f"{value[:100]!r}…" if isinstance(value, (str, bytes)) and len(value) > 200 else value
