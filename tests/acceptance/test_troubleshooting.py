"""docs/troubleshooting.md quotes what the package says, and every symptom has a cause and a cure."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

import celery_dlx_retry

PAGE = (Path(__file__).parents[2] / "docs" / "troubleshooting.md").read_text()
SYMPTOMS = re.findall(r"^### ([^\n]+)\n(.*?)(?=^##|\Z)", PAGE, re.MULTILINE | re.DOTALL)
QUOTES = re.findall(r"^(?:> |\| \*)(.+?)(?:\* \|.*)?$", PAGE, re.MULTILINE)
SOMETHING = r"(?:(?!\. [A-Z]).)+"  # within one sentence
FILLED_IN = re.compile(r"%[srd]|\{[^{}]*\}")


def is_said(text):
    """Whether the package says it: sentence by sentence, each up to something that is filled in."""
    ends = [found.end() for found in re.finditer(r"[.:](?= |$)|$", text)]
    return not text or any(
        any(said.fullmatch(text[:end]) for said in sayings()) and is_said(text[end:].strip()) for end in ends
    )


@cache
def sayings():
    texts = set()
    for module in Path(celery_dlx_retry.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(module.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.add(node.value)
            elif isinstance(node, ast.JoinedStr):
                parts = [part.value if isinstance(part, ast.Constant) else "{}" for part in node.values]
                texts.add("".join(parts))
    return [re.compile(pattern) for text in texts for pattern in beginnings(text)]


def beginnings(text):
    """Patterns for a message up to each thing that is filled in, and up to the end of each sentence."""
    for end in re.finditer(r"[.:](?= |$)|(?=%[srd]|\{)|$", text):
        beginning = text[: end.end()].strip()
        if len(FILLED_IN.sub("", beginning)) > 10:
            yield SOMETHING.join(re.escape(literal) for literal in FILLED_IN.split(beginning))


@pytest.mark.parametrize("quote", QUOTES)
def test_every_message_that_is_quoted_is_one_of_the_package(quote):
    assert is_said(quote)


@pytest.mark.parametrize(
    "invented",
    [
        "The broker user may not configure the queue 'x'. Ask somebody.",
        "The broker is closed.",
        "retries scheduled task=shop.charge",
    ],
)
def test_what_the_package_does_not_say_would_be_found_out(invented):
    assert not is_said(invented)


def test_every_symptom_has_a_cause_and_a_cure():
    assert len(SYMPTOMS) >= 12
    for symptom, text in SYMPTOMS:
        assert "*Why*" in text, symptom
        assert "*What to do*" in text, symptom
