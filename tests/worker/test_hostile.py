"""Whatever comes as a message and whatever a task raises: the worker lives, and nothing vanishes."""

from __future__ import annotations

import datetime as dt
import json
from collections import defaultdict
from contextlib import suppress
from decimal import Decimal
from itertools import count
from types import SimpleNamespace

import pytest
from amqp import Message as RawMessage
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kombu.connection import Connection
from kombu.utils.uuid import uuid
from support import UNDECODABLE, RawProperties, eventually, raw_properties, raw_text

from celery_dlx_retry.policy.reasons import Reason
from tests.worker.stage import stage

TASKS = ["hostile.succeed", "hostile.fail", "hostile.retry", "hostile.obey"]
EXPIRED = "2001-01-01T00:00:00+00:00"
JSON = "application/json"
FRAME_BYTES = 131_072
ABSENT = object()
OWN_ID = "its number"
NUMBERS = count(1)
REASONS = {str(reason) for reason in Reason}
ERRORS = (
    *("megabytes of text", "megabytes of lines", "surrogates", "str() raises", "unpicklable", "cannot be made again"),
    *("huge args", "1000 causes", "circular context", "long type name", "a group"),
)


@pytest.fixture(scope="module")
def project(request):
    with stage(request, worker_prefetch_multiplier=16) as it:
        it.worker = it.start(module="project_hostile", concurrency=2).wait_until_ready()
        yield it


def nested(depth):
    value = "bottom"
    for _ in range(depth):
        value = {"k": [value]}
    return value


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from([0, 1, -1, 7, 2**31, -(2**63), 2**63 - 1, 0.5, -1e300, Decimal("1.5")]),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    st.sampled_from(["", "x", "0", "None", "soon", "[]", "{}", "null", "[[1,2,3,4,5]]", "ä" * 20_000, "\x00"]),
    st.binary(max_size=20),
    st.just(dt.datetime(2020, 2, 2, 2, 2, 2)),  # noqa: DTZ001 - AMQP's timestamps have no zone
)
VALUES = st.one_of(
    SCALARS,
    st.lists(SCALARS, max_size=3),
    st.dictionaries(st.text(st.characters(codec="ascii"), min_size=1, max_size=8), SCALARS, max_size=3),
    st.sampled_from([nested(3), nested(60), [["x"] * 50] * 50, {"x" * 200: "y" * 30_000}]),
)
CELERYS = (
    *("task", "id", "root_id", "parent_id", "group", "group_index", "retries", "timelimit", "eta", "expires", "lang"),
    *("argsrepr", "kwargsrepr", "origin", "shadow", "meth", "ignore_result", "replaced_task_nesting", "stamps"),
    *("stamped_headers", "compression", "delivery_info", "properties", "headers", "hostname", "reply_to", "is_eager"),
    *("called_directly", "args", "kwargs", "chord", "chain", "callbacks", "errbacks", "utc", "loglevel", "priority"),
    *("correlation_id", "redelivered", "_protected", "_dlx_attempt", "dlx_wait"),
)
OURS = (
    *("dlx-history", "dlx-first-failed-at", "dlx-crashes", "dlx-replays", "dlx-dead-reason", "dlx-dead-task"),
    *("dlx-dead-task-id", "dlx-dead-queue", "dlx-dead-family", "dlx-dead-attempts", "dlx-dead-died-at-ms"),
    *("dlx-dead-traceback", "dlx-dead-unheard-of", "x-death", "x-delivery-count", "x-first-death-queue"),
)
FORGED = {
    "dlx-history": ["[" * 5000, json.dumps([[1, 2, "e" * 90_000, 3, "w"]] * 1), json.dumps([[10**30] * 5] * 50), "[1]"],
    "dlx-first-failed-at": [1, 2**62, "1"],
    "dlx-crashes": [2**62, -5, 1.5],
    "dlx-dead-reason": ["failed", "bored"],
    "timelimit": [[None], [1, 2, 3], ["a", "b"], [0, 0], [-1, -1], [None, None], {"a": 1, "b": 2}, "ab", [[], []]],
    "eta": [
        "2001-01-01T00:00:00",
        "0001-01-01T00:00:00",
        "0001-01-01T00:00:00+14:00",
        "10000-01-01T00:00:00",
        "2001-13-45",
    ],
    "expires": [EXPIRED, "0001-01-01T00:00:00", "9999-12-31T23:59:59", "soon", 0, 5],
    "stamped_headers": [["a"], [["a"]], {"a": 1}, "abc", 5],
    "stamps": [["a"], {"a": [1]}, 5],
    "retries": [10**6, 2**62, -3, "1", None, 1.5, True],
    "compression": ["application/x-gzip", "gzip", "nonsense"],
    "task": ["", "celery.ping", "celery.chord_unlock", "celery.backend_cleanup.", ["hostile.succeed"], {"a": 1}],
    "is_eager": [True],
    "called_directly": [True, False],
}


def header_value(key):
    return st.one_of(VALUES, st.sampled_from(FORGED[key])) if key in FORGED else VALUES


@st.composite
def headers(draw):
    found = {"lang": "py", "task": draw(st.sampled_from(TASKS)), "id": OWN_ID, "retries": 0}
    if draw(st.integers(0, 4)) == 0:
        for key in draw(st.sets(st.sampled_from(sorted(found)), min_size=1, max_size=3)):
            del found[key]
    for key in draw(st.sets(st.sampled_from((*CELERYS, *OURS)), max_size=3)):
        found[key] = draw(header_value(key))
    return found


GOOD_BODY = json.dumps([[], {}, {"callbacks": None, "errbacks": None, "chain": None, "chord": None}])
BROKEN_CANVAS = [
    '[[],{},{"chord":5,"callbacks":7,"errbacks":"x","chain":{}}]',
    '[[],{},{"errbacks":[{"task":"nobody.knows"}],"callbacks":[1]}]',
    '[[],{},{"chain":[5]}]',
]
BODIES = [
    *("", "null", "[]", "{}", "[[],{}]", "[[],{},{}]", '{"a":1}', "[null,null,null]", "[[],[],[]]", "0", '"abc"'),
    *('[[1],{"a":2},null]', "[[],{},[]]", "[{},[],{}]", "[" * 2000, "[" * 200_000, "\x00", "{", "[[],{},{},{}]"),
    *BROKEN_CANVAS,
    '[[],{"self":1},{}]',
    '[[],{},{"id":[],"retries":"x","delivery_info":{}}]',
    json.dumps(["x" * 300_000, {}, {}]),
]


@st.composite
def protocol_1(draw):
    body = {"task": draw(st.sampled_from(TASKS)), "id": OWN_ID, "args": [], "kwargs": {}, "retries": 0}
    for key in draw(st.sets(st.sampled_from(sorted({*body, "eta", "utc", "taskset", "timelimit"})), max_size=3)):
        value = draw(st.sampled_from([None, 5, "x", [], {}, [1], {"a": 1}, -1, 0.5, [[]], "drop"]))
        if value == "drop":
            body.pop(key, None)
        else:
            body[key] = value
    return json.dumps(body)


@st.composite
def messages(draw):
    """A message with one to three things wrong, or none."""
    kind = draw(st.sampled_from(["headers", "headers", "headers", "body", "protocol 1", "content", "nothing right"]))
    found, body, content_type, encoding = {}, GOOD_BODY, JSON, "utf-8"
    if kind in {"headers", "body", "content"}:
        found = draw(headers()) if kind == "headers" else {"task": draw(st.sampled_from(TASKS)), "id": OWN_ID}
    if kind == "body":
        body = draw(st.sampled_from(BODIES))
    if kind == "protocol 1":
        body, found = draw(protocol_1()), draw(st.sampled_from([{}, {}, {"id": "x"}, {"retries": 2}]))
    if kind == "content":
        content_type = draw(
            st.sampled_from(["", "x", "application/x-python-serialize", "application/x-yaml", "text/plain", JSON])
        )
        encoding = draw(st.sampled_from(["", "utf-8", "binary", "utf-7", "nonsense", "utf-16"]))
        body = draw(st.sampled_from([GOOD_BODY, b"\x80\x04N.", b"\xff\xfe", b"", "a: 1"]))
    if kind == "nothing right":
        found, body = draw(headers()), draw(st.one_of(st.binary(max_size=30), st.sampled_from(BODIES)))
    return SimpleNamespace(headers=found, body=body, content_type=content_type, encoding=encoding)


def drawn(count):
    """Always the same ones."""
    found = []

    @settings(
        max_examples=count, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )
    @given(messages())
    def draw(message):
        found.append(message)

    draw()
    return found


class Ledger:
    """Where each message is: done by a task, or dead."""

    def __init__(self, project, messages):
        self._project, self._messages = project, messages
        self._numbers = {
            one.headers.get("id"): one.number for one in messages if isinstance(one.headers.get("id"), str)
        }

    def dead(self):
        """Every dead letter by the number of its message; a retry keeps our header, unless a header is "headers"."""
        found = defaultdict(list)
        for letter in self._project.dead():
            sent = letter.message.headers
            found[sent.get("hostile-number") or self._numbers.get(sent.get("id"))].append(letter)
        return found

    def missing(self):
        there = {row["number"] for row in self._project.records(event="done")} | set(self.dead())
        return [one for one in self._messages if one.number not in there and not self._may_be_revoked(one)]

    def _may_be_revoked(self, message):
        """Celery acknowledges what has expired."""
        return str(message.headers.get("expires"))[:4] in {"2001", "2020", "0001"}


def publish(project, messages):
    """As bare AMQP, for Kombu would not let all of this out; and one good task after them."""
    start = next(NUMBERS)
    with Connection(project.url) as connection:
        for number, message in enumerate(messages):
            message.number = f"m{start}-{number}"
            if message.headers.get("id") == OWN_ID:
                message.headers["id"] = message.number
            body = message.body if isinstance(message.body, bytes) else message.body.encode()
            raw = RawMessage(
                body.replace(OWN_ID.encode(), message.number.encode()),
                application_headers={**message.headers, "hostile-number": message.number},
                content_type=message.content_type,
                content_encoding=message.encoding,
                delivery_mode=2,
            )
            connection.default_channel.basic_publish(raw, exchange="", routing_key=project.queue)
    return project.app.send_task("hostile.succeed", headers={"hostile-number": f"good-{start}"})


def settle(project, broker, messages):
    """Send them; the worker lives, still works, holds nothing back, and every message is somewhere."""
    good = publish(project, messages)
    ledger = Ledger(project, messages)
    eventually(lambda: good.ready() or project.worker.process.poll() is not None, within=90)
    assert project.worker.process.poll() is None, project.worker.log[-600:]
    assert good.get(timeout=1) is None

    with suppress(AssertionError):
        eventually(lambda: not ledger.missing(), within=30)
    assert [str(vars(one))[:500] for one in ledger.missing()] == []
    eventually(lambda: unsettled(project, broker) == 0, within=30)
    assert project.worker.process.poll() is None, project.worker.log[-600:]
    return ledger


def unsettled(project, broker):
    """Messages in the work queue, those that the worker holds included."""
    rows = dict(line.split() for line in broker.ctl("list_queues", "name", "messages").splitlines() if line.strip())
    return int(rows[project.queue])


def message(task="hostile.succeed", body=GOOD_BODY, content_type=JSON, encoding="utf-8", **found):
    found = {"task": task, "id": OWN_ID, **found}
    found = {key: value for key, value in found.items() if value is not ABSENT}
    return SimpleNamespace(headers=found, body=body, content_type=content_type, encoding=encoding)


# Each of these, alone, ends a worker of plain Celery and every one that comes after it, hangs in it, or is dropped.
KNOWN = {
    "the task is a list": (message(["hostile.succeed"]), "invalid"),
    "the task is a table": (message({"a": 1}), "invalid"),
    "an unknown task without id": (message("nobody.knows", id=ABSENT), "unknown-task"),
    "an unknown task whose id is a table": (message("nobody.knows", id={"a": 1}), "unknown-task"),
    "the id is a table": (message(id={"a": 1}), "invalid"),
    "the id is a list": (message(id=[1]), "invalid"),
    "the id is nothing": (message(id=None), "invalid"),
    "the body is null": (message(body="null"), "invalid"),
    "the body is a number": (message(body="5"), "invalid"),
    "the body is an empty list": (message(body="[]"), "invalid"),
    "the body lacks the third part": (message(body="[[],{}]"), "invalid"),
    "the body is a table": (message(body='{"a":1}'), "invalid"),
    "the arguments are null": (message(body="[null,null,null]"), "invalid"),
    "the body is empty and binary": (message(body="", encoding="binary"), "invalid"),
    "the body is empty and of no type": (message(body="", content_type="x", encoding="binary"), "invalid"),
    "one time limit": (message(timelimit=[1]), "invalid"),
    "three time limits": (message(timelimit=[1, 2, 3]), "invalid"),
    "time limits of text": (message(timelimit=["a", "b"]), "invalid"),
    "a number of stamps": (message(stamped_headers=5), "invalid"),
    "stamps of lists": (message(stamped_headers=[["a"]]), "invalid"),
    "an eta of nothing": (message(eta=0), "invalid"),
    "an eta before time": (message(eta="0001-01-01T00:00:00+14:00"), "invalid"),
    "expires at nothing": (message(expires=0), "invalid"),
    "retries of text": (message("hostile.retry", retries="x"), "invalid"),
    "negative retries": (message("hostile.obey", retries=-3), "invalid"),
    "said to be eager": (message("hostile.retry", is_eager=True), "exhausted"),
    "said to be called directly": (message("hostile.retry", called_directly=True), "exhausted"),
    "said to be in our guard": (message("hostile.fail", _dlx_attempt="x"), "failed"),
    "said to be settled": (message("hostile.fail", _dlx_attempt={"is_settled": True}), "failed"),
}


def test_each_known_evil_is_a_dead_letter_with_its_reason(project, broker):
    ledger = settle(project, broker, [message for message, _ in KNOWN.values()])

    dead = ledger.dead()
    found = {name: [str(letter.record.reason) for letter in dead[one.number]] for name, (one, _) in KNOWN.items()}
    assert found == {name: [reason] for name, (_, reason) in KNOWN.items()}


def test_no_message_vanishes_and_none_takes_the_worker_down(project, broker):
    messages = drawn(300)

    ledger = settle(project, broker, messages)

    dead = ledger.dead()
    for message in messages:
        assert len(dead[message.number]) <= 1, vars(message)
        for letter in dead[message.number]:
            assert str(letter.record.reason) in REASONS
            assert header_bytes(letter) < FRAME_BYTES


def test_a_message_that_amqp_cannot_decode_is_a_dead_letter_and_the_worker_lives(project, broker):
    with Connection(project.url) as connection:
        for number, (headers, texts, _) in enumerate(UNDECODABLE.values()):
            sent = {"task": raw_text("hostile.succeed"), "id": raw_text(f"undecodable-{number}"), **headers}
            properties = raw_properties(sent, {0x8000: JSON.encode(), 0x4000: b"utf-8", **texts})
            message = RawProperties(GOOD_BODY.encode(), properties)
            connection.default_channel.basic_publish(message, exchange="", routing_key=project.queue)

    letters = settle(project, broker, []) and eventually(
        lambda: found if len(found := undecodable(project)) == len(UNDECODABLE) else [], within=60
    )

    assert {str(letter.record.reason) for letter in letters} == {"invalid"}
    assert [letter.record.error for letter in letters] == [told for _, _, told in UNDECODABLE.values()]
    assert {letter.message.body for letter in letters} == {GOOD_BODY.encode()}
    assert {letter.record.task for letter in letters} == {"hostile.succeed"}
    for letter in letters:
        assert header_bytes(letter) < FRAME_BYTES


def undecodable(project):
    found = [letter for letter in project.dead() if letter.record.task_id.startswith("undecodable-")]
    return sorted(found, key=lambda letter: letter.record.task_id)


@pytest.mark.parametrize("kind", sorted(ERRORS))
def test_whatever_a_task_raises_its_dead_letter_has_sound_headers(project, kind):
    now, later = (project.app.send_task("hostile.raise_it", (kind,), {"retries": retries}) for retries in (0, 1))

    letters = {one.record.task_id: one for one in eventually(lambda: dead_of(project, now, later), within=60)}

    assert project.worker.process.poll() is None
    assert len(letters) == 2
    assert (letters[now.id].record.reason, letters[later.id].record.reason) == ("failed", "exhausted")
    assert [failure.attempt for failure in letters[later.id].history] == [1, 2]
    for letter in letters.values():
        assert header_bytes(letter) < FRAME_BYTES
        assert letter.record.error_type
        letter.record.error.encode()
        letter.record.traceback.encode()


@pytest.mark.parametrize("size", [90_000, 119_000, 125_000, 129_000])
def test_headers_near_the_limit_of_a_frame_leave_room_for_retries_and_a_dead_letter(project, size):
    result = project.app.send_task(
        "hostile.raise_it", ("megabytes of text",), {"retries": 2}, headers={"custom": "x" * size}
    )

    (letter,) = eventually(lambda: dead_of(project, result), within=30)

    assert letter.message.headers["custom"] == "x" * size
    assert (letter.record.reason, letter.record.attempts) == ("exhausted", 3)
    assert header_bytes(letter) < FRAME_BYTES
    assert project.worker.process.poll() is None


@pytest.mark.parametrize("spare", [0, 40, 100, 170, 400, 1_500])
def test_headers_as_long_as_a_frame_end_as_dead_letters_and_bounce_for_ever_in_none(project, spare):
    """The broker took them from the sender; what is left of the frame is less than our own headers need."""
    sent = [
        _fill(project, "hostile.raise_it", ["surrogates"], {}, spare=spare),
        _fill(project, "hostile.raise_it", ["surrogates"], {"retries": 2}, spare=spare),
        _fill(project, "hostile.unheard_of", [], {}, spare=spare),
    ]

    def letters():
        found = {one.message.properties.get("correlation_id"): one for one in project.dead()}
        return found if found.keys() >= {task_id for task_id, _ in sent} else None

    found = eventually(letters, within=30)
    for task_id, pad in sent:
        assert found[task_id].message.headers["pad"] == pad
        assert header_bytes(found[task_id]) <= FRAME_BYTES - 20
    reasons = [found[task_id].record and str(found[task_id].record.reason) for task_id, _ in sent]
    # Celery's retry() adds a root_id, a parent_id and more; if that leaves no room for a reason, there is no retry.
    assert reasons == ["failed", "exhausted" if spare >= 100 else "failed", "unknown-task"]
    assert project.worker.process.poll() is None


def _fill(project, name, args, kwargs, *, spare):
    """Send a task with headers that leave so many bytes of their frame free; its id, and what they were filled with."""
    message = project.app.amqp.as_task_v2(uuid(), name, args=args, kwargs=kwargs)
    properties = {"correlation_id": message.properties["correlation_id"], "delivery_mode": 2}
    properties |= {"content_type": JSON, "content_encoding": "utf-8", "priority": 0}
    empty = RawMessage("", application_headers={**message.headers, "pad": ""}, **properties)
    pad = "x" * (FRAME_BYTES - 20 - len(empty._serialize_properties()) - spare)
    with Connection(project.url) as connection:
        channel = connection.channel()
        channel.confirm_select()
        channel.basic_publish_confirm(
            RawMessage(json.dumps(message.body), application_headers={**message.headers, "pad": pad}, **properties),
            routing_key=project.queue,
        )
    return message.properties["correlation_id"], pad


def dead_of(project, *results):
    """Their dead letters, once there is one for each."""
    found = [one for one in project.dead() if one.record.task_id in {result.id for result in results}]
    return found if len({one.record.task_id for one in found}) == len(results) else []


def header_bytes(letter):
    properties = {key: value for key, value in letter.message.properties.items() if key != "application_headers"}
    return len(RawMessage("", application_headers=dict(letter.message.headers), **properties)._serialize_properties())
