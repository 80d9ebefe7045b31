"""Every log line of ours has fields, for readers of JSON logs, and names its task where formatters look."""

import ast
import json
import logging
import re
from pathlib import Path

import pytest
from celery.app.log import TaskFormatter

import celery_dlx_retry
from celery_dlx_retry.app.event_log import extra_of
from celery_dlx_retry.events import DeadLettered, GivenBack, RetryScheduled
from celery_dlx_retry.values.log_lines import escaped, log_fields, request_fields

ROOT = Path(celery_dlx_retry.__file__).parent
PAGE = (ROOT.parent / "docs" / "logs.md").read_text()
CALLS = {"debug", "info", "warning", "error", "critical", "exception", "log"}
#: What makes the fields. events.py writes them itself: it imports only the standard library.
MAKERS = {"log_fields", "request_fields", "_fields", "extra_of"}
TEXT = "4111 1111 1111 1111"


def log_calls():
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CALLS:
                owner = node.func.value
                if isinstance(owner, ast.Name) and "log" in owner.id.lower():
                    yield path.relative_to(ROOT), node


def test_no_log_call_of_the_package_lacks_fields():
    calls = [*log_calls()]

    assert len(calls) > 40
    bare = [f"{path}:{call.lineno}" for path, call in calls if "extra" not in {it.arg for it in call.keywords}]
    assert bare == []


def line_names():
    """The names of all lines, as the source has them: the first argument of what makes the fields."""
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in MAKERS:
                for name in node.args[:1]:
                    if isinstance(name, ast.Constant):
                        yield name.value
            if isinstance(node, ast.Dict):
                yield from (
                    value.value
                    for key, value in zip(node.keys, node.values, strict=True)
                    if isinstance(key, ast.Constant) and key.value == "dlx_event" and isinstance(value, ast.Constant)
                )


def test_the_page_names_every_line_and_no_other():
    rows = re.findall(r"^\| `(\w+)` \| (?:debug|info|warning|error|critical)", PAGE, re.MULTILINE)

    assert len(rows) == len(set(rows))
    assert set(rows) == set(line_names())


@pytest.fixture
def logger(request):
    it = logging.getLogger(f"tests.{request.node.name}")
    yield escaped(it)
    it.filters.clear()


class Request:
    name, id = "shop.charge", "4f"


def test_a_line_about_a_task_names_it_where_formatters_look(logger, caplog):
    logger.warning("not parked", extra=log_fields("NotParked", task="shop.charge", task_id="4f"))
    logger.warning("on_failure raised", extra=request_fields("HookFailed", Request))

    for record in caplog.records:
        assert (record.task_name, record.task_id) == (record.dlx_task, record.dlx_task_id) == ("shop.charge", "4f")
        line = TaskFormatter("%(levelname)s %(task_name)s[%(task_id)s] %(message)s", use_color=False).format(record)
        assert line.startswith("WARNING shop.charge[4f] ")


def test_a_line_about_no_task_leaves_the_names_to_the_formatter(logger, caplog):
    logger.warning("exporter failed", extra=log_fields("ExporterFailed"))

    (record,) = caplog.records
    assert TaskFormatter("%(task_name)s[%(task_id)s]", use_color=False).format(record) == "???[???]"


@pytest.mark.parametrize(("made", "shown"), [(None, "4f"), ("enclosing", "enclosing")])
def test_a_record_factory_that_sets_the_id_does_no_harm(logger, caplog, monkeypatch, made, shown):
    factory = logging.getLogRecordFactory()

    def with_task(*args, **options):
        record = factory(*args, **options)
        record.task_id = made
        return record

    monkeypatch.setattr(logging, "_logRecordFactory", with_task)
    logger.warning("not parked", extra=log_fields("NotParked", task="shop.charge", task_id="4f"))

    (record,) = caplog.records
    assert record.task_id == shown


def test_no_field_of_an_event_has_the_text_of_an_error():
    common = {"task": "shop.charge", "task_id": "4f", "queue": "orders", "worker": "w@h"}
    events = (
        RetryScheduled(**common, retry=1, delay_ms=1, error_type="ValueError", error=f"ValueError: {TEXT}"),
        DeadLettered(**common, reason="failed", attempts=1, group="g", error_type="ValueError", error=TEXT),
        GivenBack(**common, problem=ValueError(TEXT)),
    )

    for event in events:
        assert TEXT not in json.dumps(extra_of(event))


def test_no_field_forges_a_second_line():
    fields = log_fields("HookFailed", task="a\nb", task_id=None, count=3)

    assert fields == {"dlx_event": "HookFailed", "dlx_task": "a\\nb", "dlx_task_id": None, "dlx_count": 3}
