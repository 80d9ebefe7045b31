"""Text from messages on a terminal, in a log and in JSON."""

import importlib
import json
import logging
import pkgutil

import pytest

import celery_dlx_retry
from celery_dlx_retry.errors import Unreadable
from celery_dlx_retry.values.escaping import json_text, printable, readable_json
from celery_dlx_retry.values.log_lines import escaped

HOSTILE = "a\n\r\t\x00\x1b[31m\x7f\x85\x9b2J\u061c\u200f\u202e\u2028\u2029\u2066\ufeff\ud800\U000e0041z"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("orders", "orders"),
        ("größe 東京 \U0001f600", "größe 東京 \U0001f600"),
        ("a\nb", "a\\nb"),
        ("\x1b[2J", "\\x1b[2J"),
        ("\x9b2J", "\\x9b2J"),
        ("\u202ebank", "\\u202ebank"),
        ("\u2028", "\\u2028"),
        ("\ud800", "\\ud800"),
        ("", ""),
    ],
)
def test_what_could_steer_a_terminal_is_written_as_an_escape(text, shown):
    assert printable(text) == shown


def test_hostile_text_is_one_line_of_printable_text_that_can_be_encoded():
    shown = printable(HOSTILE)

    assert shown.isprintable()
    assert shown.encode()
    assert (shown[0], shown[-1]) == ("a", "z")


@pytest.mark.parametrize(
    ("value", "read"),
    [
        ({"id": "größe \U0001f600 한국어"}, {"id": "größe \U0001f600 한국어"}),
        ({"id": "\x9b\u202e\u2028\x00"}, {"id": "\x9b\u202e\u2028\x00"}),
        ({"\ud800": ["\udfff", "a"]}, {"\\ud800": ["\\udfff", "a"]}),
        ([float("nan"), 1.5], [{"$float": "nan"}, 1.5]),
        ({"a": {"b": (float("inf"), -float("inf"))}}, {"a": {"b": [{"$float": "inf"}, {"$float": "-inf"}]}}),
        ({float("nan"): 1, None: 2}, {"nan": 1, "None": 2}),
    ],
)
def test_json_is_ascii_and_strict(value, read):
    text = json_text(value)

    assert text.isascii()
    assert text.isprintable()
    assert json.loads(text, parse_constant=pytest.fail) == read
    assert json.dumps(json.loads(text), ensure_ascii=False).encode()


def test_json_of_what_is_nested_without_end_is_cut():
    deep = 1
    for _ in range(100_000):
        deep = [deep]

    found = json.loads(json_text({"deep": deep, "flat": "x"}))

    assert found["flat"] == "x"
    assert '{"$deep": true}' in json.dumps(found)


def test_json_for_an_editor_is_readable_and_loses_nothing():
    value = {"args": [HOSTILE, "größe", 1.5], "kwargs": {HOSTILE: None}}

    text = readable_json(value)

    assert json.loads(text) == value
    assert "größe" in text
    assert text.encode()
    assert all(line.isprintable() for line in text.splitlines())


def test_what_is_nested_too_deeply_is_not_given_to_an_editor():
    deep = 1
    for _ in range(100_000):
        deep = [deep]

    with pytest.raises(Unreadable, match="nested too deeply for an editor"):
        readable_json(deep)


@pytest.fixture
def logger(request):
    it = logging.getLogger(f"tests.{request.node.name}")
    yield it
    it.filters.clear()


def test_no_value_forges_a_second_line_in_a_log(logger, caplog):
    escaped(escaped(logger)).warning("dead letter task=%s id=%r queue=%s: %s", HOSTILE, HOSTILE, 5, ValueError(HOSTILE))

    (record,) = caplog.records
    assert record.getMessage().isprintable()
    assert record.getMessage().startswith("dead letter task=a\\n\\r")


def test_a_log_line_without_such_values_keeps_its_template_and_its_values(logger, caplog):
    escaped(logger).warning("dead letter task=%s attempts=%d", "shop.charge", 3)

    (record,) = caplog.records
    assert (record.msg, record.args) == ("dead letter task=%s attempts=%d", ("shop.charge", 3))


def test_a_value_that_cannot_be_printed_does_not_raise_in_the_caller(logger, monkeypatch):
    class Unprintable:
        def __str__(self):
            raise RuntimeError

    monkeypatch.setattr(logging, "raiseExceptions", False)
    monkeypatch.setattr(logger, "propagate", False)
    logger.addHandler(handler := logging.StreamHandler())

    escaped(logger).warning("%s", Unprintable())

    logger.removeHandler(handler)


def test_every_logger_of_the_package_escapes():
    names = [it.name for it in pkgutil.walk_packages(celery_dlx_retry.__path__, "celery_dlx_retry.")]
    modules = [importlib.import_module(name) for name in names if "testing" not in name]
    loggers = {module.__name__: vars(module)["logger"] for module in modules if "logger" in vars(module)}

    assert len(loggers) >= 15
    assert [name for name, it in loggers.items() if "_Lines" not in {type(each).__name__ for each in it.filters}] == []
