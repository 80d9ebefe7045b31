"""A message looks the same after its retries, and a dead letter is the message as it came, with our headers added."""

from __future__ import annotations

import datetime as dt
import json

import pytest
from kombu.connection import Connection
from support import eventually

from tests.worker.stage import stage

HEADERS = {"tenant": "7", "x-request-id": "abc", "trace": {"span": [1, 2]}}
WRITINGS = [
    pytest.param({"serializer": "json"}, {"n": [1, "ä"]}, id="json"),
    pytest.param({"serializer": "pickle"}, {"when": dt.date(2020, 2, 2), "set": {1}}, id="pickle"),
    pytest.param({"serializer": "msgpack"}, {"bytes": b"\x00\xff"}, id="msgpack"),
    pytest.param({"serializer": "json", "compression": "gzip"}, "long " * 100, id="json-gzip"),
    pytest.param({"serializer": "pickle", "compression": "bzip2"}, {"set": {1}}, id="pickle-bzip2"),
]


@pytest.fixture(scope="module")
def project(request):
    # A quorum queue writes on each message how often it was delivered, and to be looked at is to be delivered.
    with stage(request, dlx_queue_type="classic") as it:
        it.conf["task_serializer"] = "msgpack"  # so that JSON is not what the worker would write by itself
        it.start(module="project_wire").wait_until_ready()
        it.tap = Tap(it)
        yield it


class Tap:
    """Copies of all that is sent to the work queue and to the lane of 100 ms."""

    def __init__(self, project):
        self._url = project.url
        self.exchange, self._sent, self._waiting = (f"{project.prefix}.tap-{part}" for part in ("x", "sent", "lane"))
        with Connection(self._url) as connection, connection.channel() as channel:
            channel.exchange_declare(self.exchange, "fanout", auto_delete=False)
            channel.queue_bind(project.queue, self.exchange)
            lane = (self._waiting, project.names.lanes(), project.lane(100))
            for queue, exchange, routing_key in ((self._sent, self.exchange, ""), lane):
                channel.queue_declare(queue, durable=True, auto_delete=False)
                channel.queue_bind(queue, exchange, routing_key)

    def sent(self):
        return self._drain(self._sent)

    def waiting(self):
        return self._drain(self._waiting)

    def _drain(self, queue):
        found = []
        with Connection(self._url) as connection, connection.channel() as channel:
            channel.auto_decode = False
            while message := channel.basic_get(queue, no_ack=True):
                found.append(message)
        return found


def send(project, name, *args, **options):
    project.tap.sent()
    project.tap.waiting()
    options = {"exchange": project.tap.exchange, "routing_key": "ignored", "headers": HEADERS} | options
    return project.app.send_task(f"wire.{name}", args, **options)


def headers(message):
    return message.properties["application_headers"]


def without_ours(found):
    return {key: value for key, value in found.items() if not key.startswith("dlx-")}


def dead_letter(project, result):
    return eventually(lambda: [one for one in project.dead() if one.record.task_id == result.id])[0]


@pytest.mark.parametrize(("writing", "value"), WRITINGS)
def test_a_retry_is_written_as_its_first_message_was(project, writing, value):
    result = send(project, "echo", value, **writing)

    assert result.get(timeout=20) == repr(value)
    (first,) = project.tap.sent()
    retries = project.tap.waiting()
    assert [headers(retry)["retries"] for retry in retries] == [1, 2]
    for retry in retries:
        assert retry.body == first.body
        for part in ("content_type", "content_encoding", "correlation_id", "reply_to", "delivery_mode", "priority"):
            assert retry.properties.get(part) == first.properties.get(part)
        assert headers(retry).get("compression") == headers(first).get("compression")


def test_arguments_that_the_caller_hid_from_logs_stay_hidden_in_retries(project):
    result = send(project, "echo", "card 4111", kwargs={"failures": 2}, argsrepr="(***)", kwargsrepr="{***}")

    assert result.get(timeout=20) == repr("card 4111")
    shown = [(headers(retry)["argsrepr"], headers(retry)["kwargsrepr"]) for retry in project.tap.waiting()]
    assert shown == [("(***)", "{***}")] * 2


def test_keyword_arguments_that_the_caller_hid_stay_hidden_beside_replaced_ones(project):
    result = send(project, "swap", "old", kwargs={"secret": "4111"}, kwargsrepr="{***}")

    assert result.get(timeout=20) == "new 4111"
    assert {headers(retry)["kwargsrepr"] for retry in project.tap.waiting()} == {"{***}"}


def test_arguments_that_a_retry_replaces_are_shown_as_they_are_now(project):
    result = send(project, "echo", "old", kwargs={"args": ["new"]}, argsrepr="(***)")

    assert result.get(timeout=20) == repr("new")
    assert {headers(retry)["argsrepr"] for retry in project.tap.waiting()} == {"('new',)"}


@pytest.mark.parametrize(("writing", "value"), WRITINGS)
def test_a_dead_letter_is_the_message_as_it_came(project, writing, value):
    result = send(project, "exhaust", value, priority=4, kwargs={"max_retries": 0}, **writing)

    letter = dead_letter(project, result)
    (first,) = project.tap.sent()
    assert letter.message.body == first.body
    assert without_ours(letter.message.headers) == headers(first)
    parts = ("content_type", "content_encoding", "correlation_id", "reply_to", "delivery_mode", "priority")
    assert {part: letter.message.properties[part] for part in parts} == {part: first.properties[part] for part in parts}


def test_after_retries_a_dead_letter_differs_from_the_first_message_only_in_what_counts_them(project):
    result = send(project, "exhaust", "value", priority=4)

    letter = dead_letter(project, result)
    (first,) = project.tap.sent()
    assert letter.message.body == first.body
    before, after = headers(first), without_ours(letter.message.headers)
    assert {key for key in before | after if before.get(key) != after.get(key)} <= {
        "retries", "eta", "ignore_result", "parent_id",
    }  # fmt: skip
    assert after["retries"] == 2


def test_what_the_broker_wrote_is_never_copied(project):
    result = send(project, "exhaust")

    letter = dead_letter(project, result)
    for message in (*map(headers, project.tap.waiting()), letter.message.headers):
        assert not [key for key in message if "death" in key or "count" in key]


def test_custom_headers_survive_every_retry(project):
    result = send(project, "echo", 1)

    result.get(timeout=20)
    runs = project.records(id=result.id)
    assert len(runs) == 3
    for run in runs:
        assert run["headers"] == HEADERS


def test_retry_with_other_headers_keeps_the_history(project):
    result = send(project, "exhaust", kwargs={"headers": {"tenant": "8"}})

    letter = dead_letter(project, result)
    assert letter.message.headers["tenant"] == "8"
    assert [failure.attempt for failure in letter.history] == [1, 2, 3]
    assert letter.message.headers["dlx-first-failed-at"] == letter.history[0].at_ms


def test_the_history_of_many_retries_is_bounded_and_keeps_the_first(project):
    result = send(project, "persist")

    letter = dead_letter(project, result)
    assert letter.record.attempts == 26
    assert len(project.records(id=result.id)) == 26
    assert [failure.attempt for failure in letter.history] == [1, *range(8, 27)]
    assert {failure.delay_ms for failure in letter.history[:-1]} == {50}
    assert len(json.dumps(dict(letter.message.headers), default=str)) < 20_000


@pytest.mark.parametrize("kind", ["huge", "surrogates", "unprintable", "unpicklable", "local", "chained"])
def test_whatever_the_error_is_its_task_is_retried_and_then_one_dead_letter(project, kind):
    result = send(project, "nasty", kind)

    letter = dead_letter(project, result)
    assert (letter.record.reason, letter.record.attempts) == ("exhausted", 2)
    assert [failure.attempt for failure in letter.history] == [1, 2]
    eventually(lambda: project.app.AsyncResult(result.id).state == "FAILURE")
