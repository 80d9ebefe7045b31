"""The example of docs/api.md on a real broker, and the functions in its table."""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from pathlib import Path

import pytest
from support import eventually

from celery_dlx_retry.operations.topology import declare_topology

PAGE = (Path(__file__).parents[2] / "docs" / "api.md").read_text()
SECTION = PAGE.partition("work on a session:")[2].partition("\n## ")[0]
FUNCTIONS = [
    (module, name, re.findall(r"(\w+)=…", call))
    for module, text in re.findall(r"^\| `(\w+)` \| (.*) \|$", SECTION, re.MULTILINE)
    for name, call in re.findall(r"`(\w+)\(([^`]*)\)`", text)
]


@pytest.mark.parametrize(("module", "name", "options"), FUNCTIONS)
def test_each_function_of_the_table_has_the_options_of_the_table(module, name, options):
    function = getattr(import_module(f"celery_dlx_retry.operations.{module}"), name)

    parameters = inspect.signature(function).parameters.values()
    keywords = [it.name for it in parameters if it.kind is it.KEYWORD_ONLY and it.name != "monitor"]
    assert keywords == options


def test_the_example_cancels_a_waiting_task_and_counts_its_dead_letter(session, app, charge):
    example = {}
    exec(re.search(r"```python\n(.*?)```", SECTION, re.DOTALL)[1], example)  # noqa: S102 - our own page
    declare_topology(session)
    task_id = charge()

    assert example["dead_letters"](app) == 0
    assert example["cancel"](app, task_id, "anna")
    assert not example["cancel"](app, "unknown", "anna")
    assert eventually(lambda: example["dead_letters"](app)) == 1
