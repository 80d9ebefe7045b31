"""The terminal pictures of the README show what the commands print."""

from __future__ import annotations

import re
import secrets
from contextlib import closing
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from tests.acceptance.tenancy import Tenancy

DOCS = Path(__file__).parents[2] / "docs"


def terminal():
    spec = spec_from_file_location("terminal", DOCS / "terminal.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def shape(lines):
    """What is the same in every run."""
    text = "\n".join(lines)
    for pattern, word in (
        (r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", "<id>"),
        (r"\b(?=[0-9a-f]*\d)[0-9a-f]{8}\b", "<group>"),
        (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", "<time>"),
        (r"in \d+ (s|min)\b", "in <n>"),
        (r"\d+ (s|min) ago", "<n> ago"),
        (r"\d\d:\d\d:\d\d UTC", "<time>"),
        (r"[\u2581-\u2588][\u2581-\u2588 ]*", "<trend>"),
        (r"\b\d\.\d\b", "<rate>"),
        (r" +", ""),
    ):
        text = re.sub(pattern, word, text)
    return text.splitlines()


def test_the_pictures_show_what_the_commands_print(broker, http_api, tmp_path):
    module = terminal()
    with closing(Tenancy(broker, http_api, f"t{secrets.token_hex(4)}")) as tenancy:
        session = module.recorded(url=tenancy.url, management_url=broker.management_url, folder=tmp_path)

    assert set(session) == set(module.COMMANDS)
    for name, command in module.COMMANDS.items():
        shown = shape(module.text_of((DOCS / "pictures" / f"{name}.svg").read_text()))
        assert shown == shape(module.text_of(module.drawn(command, session[name], name=name)))
        assert shown[0] == f"${command.replace(' ', '')}"
        assert any(re.search(r"orders\.dead|shop\.py:invoice|^workqueue", line) for line in shown)
