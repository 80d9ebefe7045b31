"""What an output may be: no traceback, no password, nothing that steers a terminal, JSON that any parser reads."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from tests.fuzz.values import SECRET

if TYPE_CHECKING:
    from click.testing import Result

LONGEST_SENTENCE = 2_000
#: The password, and the parts into which a wrongly quoted one falls.
SECRETS = (SECRET, *SECRET.split("-"))
STEERING = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


class Unsafe(AssertionError):
    """An output that nobody should see."""


def check_sentence(error: Exception) -> None:
    """An error that people read: one line, not a page, and nothing that steers a terminal."""
    text = str(error)
    if not text or "\n" in text or len(text) > LONGEST_SENTENCE or STEERING.search(text):
        raise Unsafe(f"no sentence: {text[:1000]!r}")


def check_ended(done: Result, *, asked: str = "") -> None:
    """Whatever was asked, a command ends by itself: 0 fine, 1 findings, 2 usage."""
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise Unsafe(f"traceback: {done.exception!r}") from done.exception
    printed = done.stdout + done.stderr
    if done.exit_code not in {0, 1, 2}:
        raise Unsafe(f"exit code {done.exit_code}: {printed}")
    check_text(printed, asked=asked)


def check_text(printed: str, *, asked: str = "") -> None:
    """What an operator typed himself may steer his own terminal: a command to paste has to name his queue as it is."""
    for secret in SECRETS:
        if secret in printed:
            raise Unsafe(f"a password: {printed}")
    for found in STEERING.finditer(printed):
        if found[0] in asked:
            continue
        raise Unsafe(f"{found[0]!r} reaches the terminal: {printed[max(0, found.start() - 200) : found.end() + 50]!r}")


def check_json(printed: str) -> list[Any]:
    """Every line is JSON by the standard, in ASCII."""
    found = []
    for line in printed.splitlines():
        if not line.isascii():
            raise Unsafe(f"not ASCII: {line[:300]!r}")
        found.append(json.loads(line, parse_constant=_refuse))
    return found


def _refuse(constant: str) -> None:
    raise Unsafe(f"{constant} is no JSON")
