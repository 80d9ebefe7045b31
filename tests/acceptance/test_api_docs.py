"""docs/api.md has every public name with its signature and parameters; docs/events.md has every event."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from pathlib import Path
from typing import get_args

import pytest

import celery_dlx_retry
from celery_dlx_retry import errors
from celery_dlx_retry.events import Event

EVENTS = Path(__file__).parents[2] / "docs" / "events.md"
PAGE = (Path(__file__).parents[2] / "docs" / "api.md").read_text()
SECTIONS = dict(re.findall(r"^### (\w+)\n(.*?)(?=^##|\Z)", PAGE, re.MULTILINE | re.DOTALL))
CALLABLES = [name for name in celery_dlx_retry.__all__ if callable(getattr(celery_dlx_retry, name))]


def signature(name):
    """As one would write it: no annotations."""
    found = inspect.signature(getattr(celery_dlx_retry, name))
    bare = [parameter.replace(annotation=parameter.empty) for parameter in found.parameters.values()]
    text = str(found.replace(parameters=bare, return_annotation=found.empty))
    return name + re.sub(r"<class '(\w+)'>", r"\1", text)


def test_every_public_name_has_a_heading_and_no_other_has():
    assert set(SECTIONS) == set(celery_dlx_retry.__all__)


@pytest.mark.parametrize("name", CALLABLES)
def test_the_signature_on_the_page_is_that_of_the_code(name):
    assert f"\n`{signature(name)}`\n" in SECTIONS[name]


@pytest.mark.parametrize("name", CALLABLES)
def test_every_parameter_is_told_of(name):
    parameters = inspect.signature(getattr(celery_dlx_retry, name)).parameters
    text = SECTIONS[name].split("`\n", 1)[1]
    if name in {"Fixed", "Linear", "Exponential", "Delays", "Custom"}:
        text += SECTIONS["Policy"].split("`\n", 1)[1]

    assert [one for one in parameters if not re.search(rf"`[^`]*\b{one}\b", text)] == []


def test_every_option_of_the_task_is_told_of_with_its_default():
    rows = dict(re.findall(r"^\| `(\w+)` \| `(\w+)` \|", SECTIONS["DLXRetryTask"], re.MULTILINE))
    ours = {name: value for name, value in vars(celery_dlx_retry.DLXRetryTask).items() if name in rows}

    assert set(rows) == {"policy", "budget", "breaker"}
    assert {name: str(value) for name, value in ours.items()} == rows


def test_every_exception_is_on_the_page():
    classes = {name for name, value in vars(errors).items() if inspect.isclass(value) and issubclass(value, Exception)}

    assert {name for name in classes if f"`{name}`" not in PAGE} == {"DLXError"}  # which has a heading


def test_every_event_is_on_its_page_with_its_sentence_and_its_fields():
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \| (.+?) \|$", EVENTS.read_text(), re.MULTILINE)
    page = {name: (sentence, re.findall(r"\w+", names)) for name, sentence, names in rows}

    assert page == {event.__name__: (event.__doc__.splitlines()[0], facts_of(event)) for event in get_args(Event)}


def facts_of(event):
    properties = [name for name, value in vars(event).items() if isinstance(value, property)]
    return [field.name for field in fields(event)] + properties
