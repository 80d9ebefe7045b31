"""A pytest plugin for test suites that other projects wrote: it sets ``task_cls`` and records every outcome.

It imports celery before the suite does and nothing else of this folder: the suite's pytest loads it with ``-p``.
"""

from __future__ import annotations

import functools
import json
import os
import weakref
from pathlib import Path

import pytest
from celery import Celery

RECORD = "SUITE_RECORD"  # a file that gets one line of JSON per test
TASK_CLS = "SUITE_TASK_CLS"  # empty: plain Celery
BROKER = "SUITE_BROKER"  # replaces the broker of the fixture celery_config
TEST_SECONDS = 180  # some tests of Celery allow themselves 300 s, which they need only when they hang
TEXT_LENGTH = 6_000

PLAIN = "celery.app.task:Task"


class Suite:
    """Records outcomes, and how many tasks were ours: a run with none of ours compares nothing."""

    def __init__(self, record: Path, task_cls: str, broker: str) -> None:
        self._record, self._task_cls, self._broker = record, task_cls, broker
        self._worst: dict[str, str] = {}
        self._apps: weakref.WeakSet[Celery] = weakref.WeakSet()
        self._tasks: set[str] = set()
        self._ours: set[str] = set()

    def set_task_cls(self) -> None:
        """Let every app that names no class have ours, as ``Celery(task_cls=…)`` does, and remember the app."""
        init = Celery.__init__

        @functools.wraps(init)
        def with_task_cls(app, *args, **kwargs):
            if self._task_cls and type(app).task_cls == PLAIN and not kwargs.get("task_cls"):
                kwargs["task_cls"] = self._task_cls
            init(app, *args, **kwargs)
            self._apps.add(app)

        Celery.__init__ = with_task_cls

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            item.add_marker(pytest.mark.timeout(TEST_SECONDS), append=False)

    @pytest.hookimpl(hookwrapper=True)
    def pytest_fixture_setup(self, fixturedef):
        """Give the suite's own configuration another broker."""
        outcome = yield
        if self._broker and fixturedef.argname == "celery_config" and outcome.excinfo is None:
            outcome.get_result()["broker_url"] = self._broker

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_teardown(self) -> None:
        """Look before the fixtures close their apps."""
        for app in list(self._apps):
            for name, task in dict(getattr(app, "_tasks", ())).items():
                if not name.startswith("celery."):
                    self._tasks.add(name)
                    if any(cls.__module__.startswith("celery_dlx_retry.") for cls in type(task).__mro__):
                        self._ours.add(name)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the worst of set-up, call and tear-down; subtests have the id of their test."""
        kind = report.outcome if not hasattr(report, "wasxfail") else "xfailed"
        worst = self._worst.get(report.nodeid)
        if worst == "failed" or (report.when != "call" and kind == "passed"):
            return
        self._worst[report.nodeid] = kind
        text = str(report.longrepr)[-TEXT_LENGTH:] if kind == "failed" else ""
        self._write(id=report.nodeid, outcome=kind, seconds=round(report.duration, 2), text=text)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._write(id=report.nodeid, outcome="failed", seconds=0, text=str(report.longrepr)[-TEXT_LENGTH:])

    def pytest_sessionfinish(self) -> None:
        self._write(tasks=len(self._tasks), ours=len(self._ours))

    def _write(self, **line) -> None:
        with self._record.open("a") as file:
            file.write(json.dumps(line) + "\n")


def pytest_configure(config: pytest.Config) -> None:
    suite = Suite(Path(os.environ[RECORD]), os.environ.get(TASK_CLS, ""), os.environ.get(BROKER, ""))
    suite.set_task_cls()
    config.pluginmanager.register(suite, "suite")
