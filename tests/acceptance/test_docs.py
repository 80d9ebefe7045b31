"""Every example runs, every link leads somewhere, and what the pages say of names, settings and commands is so."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from contextlib import suppress
from dataclasses import fields
from datetime import datetime, timedelta, timezone
from pathlib import Path

import click
import pytest
from celery.bin.worker import worker
from kombu.connection import Connection

from celery_dlx_retry import cli
from celery_dlx_retry.policy.reasons import Reason
from celery_dlx_retry.policy.rule_retries import RULE_RETRIES
from celery_dlx_retry.settings import Settings
from celery_dlx_retry.wire import headers
from celery_dlx_retry.wire.dead_record import DeadRecord, record_key, with_record
from celery_dlx_retry.wire.headers import Failure, with_failure
from celery_dlx_retry.wire.trace_header import TRACE
from celery_dlx_retry.wire.unreadable import UNREADABLE

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
TOUR = ROOT / "docs" / "tour.md"
CONTENTS = ROOT / "docs" / "contents.md"
SETTINGS_PAGE = ROOT / "docs" / "settings.md"
REPOSITORY = re.findall(r'^Repository = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)[0]
DOCS = sorted((ROOT / "docs").glob("*.md"))
FAULTS = ROOT / "docs" / "what-happens-when.md"
SECURITY = ROOT / "docs" / "security.md"
PAGES = [README, *DOCS, *(ROOT / f"{name}.md" for name in ("CHANGELOG", "CONTRIBUTING", "SECURITY"))]
WRITTEN_BY_RUNS = {"benchmarks", "compatibility"}
SETTINGS = {f"dlx_{field.name.removesuffix('_ms')}": field for field in fields(Settings)}

APP = """\
from celery import Celery

app = Celery("shop", broker="amqp://guest:guest@127.0.0.1//")

@app.task(bind=True, max_retries=5)
def charge(self, order_id):
    try:
        bank.charge(order_id)
    except ConnectionError as exc:
        raise self.retry(exc=exc, countdown=60)"""
USE_OF_THE_APP = """\
import shop
from celery_dlx_retry import DLXRetryTask

shop.bank = type("Bank", (), {"charge": staticmethod(print)})
shop.charge("order-1")
print(isinstance(shop.app.tasks["shop.charge"], DLXRetryTask))
"""
BLOCK = re.compile(r"(<!-- continued -->\n)?```(\w+)\n(.*?)```\n", re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")


def blocks(page, language):
    """(line, is_continued, text) of each fenced block of a language."""
    text = page.read_text()
    return [
        (text.count("\n", 0, found.start()) + 1, bool(found[1]), found[3])
        for found in BLOCK.finditer(text)
        if found[2] == language
    ]


def chains(page):
    """Python blocks of a page, each with those that it continues: marked ``<!-- continued -->``."""
    chain = ""
    for line, is_continued, code in blocks(page, "python"):
        chain = chain + code if is_continued else code
        yield pytest.param(chain, id=f"{page.relative_to(ROOT)}:{line}")


def only(page, language):
    ((_, _, text),) = blocks(page, language)
    return text


@pytest.mark.parametrize("code", [case for page in PAGES for case in chains(page)])
def test_every_python_example_runs(code, tmp_path):
    python(code, folder=tmp_path)


def test_the_countdowns_of_the_tour_are_sent(broker, prefix, tmp_path):
    ((_, _, code),) = [block for block in blocks(TOUR, "python") if "def on_order" in block[2]]
    conf = {"broker_url": broker.url, "dlx_prefix": prefix, "task_default_queue": f"{prefix}.work"}

    python(f"{code}\n\napp.conf.update({conf!r})\non_order('order-1')\n", folder=tmp_path)

    with Connection(broker.url) as connection:
        (_, ready, _) = connection.default_channel.queue_declare(f"{prefix}.work", passive=True)
    assert ready == 1  # the first of the chain; the others wait


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_relative_link_leads_to_a_file_and_a_heading(page):
    for link in LINK.findall(page.read_text()):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target), link


def test_every_proof_of_what_happens_is_a_test_in_the_file_that_it_names():
    rows = [line for line in FAULTS.read_text().splitlines() if re.match(r"\| (?!what happens)", line)]

    assert len(rows) >= 30
    for row in rows:
        proofs = re.findall(r"\[`(\w+)`\]\(\.\./(tests/\w+/test_\w+\.py)\)", row.rpartition(" | ")[2])
        assert proofs, row
        for name, path in proofs:
            assert f"\ndef test_{name}(" in (ROOT / path).read_text(), name


def test_every_defence_is_proved_by_tests_in_the_files_that_it_names():
    defended = SECURITY.read_text().partition("## What is defended")[2].partition("## What is not defended")[0]
    rows = [line for line in defended.splitlines() if re.match(r"\| (?!attack)", line)]

    assert len(rows) >= 25
    for row in rows:
        proofs = re.findall(r"\[`(\w+)`\]\(\.\./(tests/\w+/test_\w+\.py)\)", row.rpartition(" | ")[2])
        assert proofs, row
        for name, path in proofs:
            assert f"\ndef test_{name}(" in (ROOT / path).read_text(), name


def test_every_page_is_in_the_table_of_contents():
    linked = set(LINK.findall(CONTENTS.read_text()))

    assert {page.name for page in DOCS} - {CONTENTS.name} <= linked


def test_every_link_of_the_readme_is_absolute_and_leads_to_a_file_and_a_heading():
    """PyPI shows the README, too, and knows no relative links."""
    links = LINK.findall(README.read_text())

    assert f"{REPOSITORY}/blob/main/docs/contents.md" in links
    for link in links:
        path, _, anchor = re.sub(r"^/(blob|raw)/main/", "", link.removeprefix(REPOSITORY)).partition("#")
        assert link.startswith(REPOSITORY), link
        assert (ROOT / path).is_file(), link
        assert f"/{'raw' if path.endswith('.svg') else 'blob'}/main/" in link
        if anchor:
            assert anchor in anchors(ROOT / path), link


def test_the_readme_has_fewer_than_900_words():
    assert len(README.read_text().split()) < 900


def test_every_address_of_the_project_is_in_its_repository():
    urls = re.search(r"^\[project\.urls\]\n((?:\w+ = .+\n)+)", (ROOT / "pyproject.toml").read_text(), re.MULTILINE)[1]

    for url in re.findall(r'"(.+)"', urls):
        assert url.startswith(REPOSITORY)
        path = url.removeprefix(REPOSITORY).removeprefix("/blob/main/")
        assert path in {"", "/issues"} or (ROOT / path).is_file(), url


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_page_names_a_place_of_one_machine(page):
    assert not re.search(r"(?<![\w.])/(work|tmp|home|root|Users)/", page.read_text())


def test_the_diff_adopts_a_celery_app_in_at_most_15_lines(tmp_path):
    diff = only(README, "diff").splitlines()
    before = "\n".join(line[1:] for line in diff if not line.startswith("+"))
    after = "\n".join(line[1:] for line in diff if not line.startswith("-"))

    assert len(diff) <= 15
    assert before == APP
    (tmp_path / "shop.py").write_text(after)
    assert python(USE_OF_THE_APP, folder=tmp_path) == "order-1\nTrue\n"


def test_the_dead_letters_of_the_tour_are_what_the_command_prints(broker, prefix):
    promised = only(TOUR, "console").split("\n", 1)
    with Connection(broker.url, transport_options={"confirm_publish": True}) as connection:
        connection.channel().queue_declare(f"{prefix}.dead", durable=True, auto_delete=False)
        for letter in DEAD_LETTERS:
            connection.Producer().publish("", routing_key=f"{prefix}.dead", headers=letter)

    printed = on_a_terminal(sys.executable, "-m", "celery", "-b", broker.url, "dlx", "dead", "list", "-q", prefix)

    assert promised[0] == "$ celery -A example_project.shop dlx dead list"
    assert printed == promised[1]


def test_every_dlx_command_has_a_place_in_the_reference_and_so_has_each_of_its_options():
    text = "".join(
        (ROOT / "docs" / f"{page}.md").read_text() for page in ("commands", "dead-letters", "doctor", "brokers")
    )

    for path, command in leaves(cli.dlx):
        assert re.search(rf"^\| .*`{path}`|^#+ .*\b{path.split()[-1]}\b|celery .* dlx {path}\b", text, re.MULTILINE), (
            path
        )
        for option in command.params:
            named = [name for name in option.opts if re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", text)]
            assert named or not isinstance(option, click.Option), (path, option.opts)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_dlx_command_in_a_sentence_exists(page):
    for line in re.findall(r"`celery (?:-A \S+ )?dlx ([a-z][^`…]*)`", page.read_text()):
        command, words = cli.dlx, line.split()
        while isinstance(command, click.Group) and words:
            command, words = command.commands[words[0]], words[1:]
        known = {flag for parameter in command.params for flag in (*parameter.opts, *parameter.secondary_opts)}
        assert {word for word in words if word.startswith("-") and word != "-"} <= known, line


@pytest.mark.parametrize(
    "page", [page for page in DOCS if page.stem not in WRITTEN_BY_RUNS], ids=lambda page: page.name
)
def test_every_line_is_one_sentence(page):
    prose = re.sub(
        r"^```.*?^```$|^[|>].*?$|`[^`\n]*`|\]\([^)\n]*\)", "", page.read_text(), flags=re.MULTILINE | re.DOTALL
    )

    assert [line for line in prose.splitlines() if re.search(r"(?<!\d)[.!?][)*]* [A-Z]", line)] == []


def test_every_worker_flag_is_on_the_page_of_settings_and_every_one_there_exists():
    flags = {flag for parameter in worker.params for flag in (*parameter.opts, *parameter.secondary_opts)}
    described = set(re.findall(r"--dlx-[a-z-]+", SETTINGS_PAGE.read_text().partition("\n## Worker flags\n")[2]))

    assert described == {flag for flag in flags if flag.startswith("--dlx-")}
    help_text = celery("worker", "--help")
    assert [flag for flag in described if flag not in help_text] == []


@pytest.mark.parametrize("setting", SETTINGS)
def test_every_setting_has_a_heading_with_values_and_its_default(setting):
    sections = re.split(r"^## ", (ROOT / "docs/settings.md").read_text(), flags=re.MULTILINE)
    (section,) = [text for text in sections if text.startswith(f"{setting}\n")]

    assert "\nValues: " in section
    (default,) = re.findall(r"^Default: `(.+)`\.$", section, re.MULTILINE)
    assert value_of(setting, default) == SETTINGS[setting].default


def test_no_setting_is_described_that_does_not_exist():
    text = (ROOT / "docs/settings.md").read_text()

    assert set(re.findall(r"^## (\w+)$", text, re.MULTILINE)) == set(SETTINGS)


def test_the_table_of_settings_has_every_setting_with_its_default():
    rows = re.findall(r"^\| \[`(dlx_\w+)`\]\(\S+\) \| `(.+?)` \|", SETTINGS_PAGE.read_text(), re.MULTILINE)

    assert {setting for setting, _ in rows} == set(SETTINGS)
    for setting, default in rows:
        assert value_of(setting, default) == SETTINGS[setting].default


def test_every_header_and_reason_is_on_its_page():
    text = (ROOT / "docs/headers-and-names.md").read_text()
    described = set(re.findall(r"`(dlx-[a-z-]+)`", text))
    record = {record_key(field.name) for field in fields(DeadRecord)}
    others = {
        value for name, value in vars(headers).items() if name.isupper() and name[0] != "_" and isinstance(value, str)
    }

    assert described == record | others | {RULE_RETRIES, TRACE, UNREADABLE}
    assert set(re.findall(r"^\| `([a-z-]+)` \| [^|]+ \|$", text.partition("## Reasons")[2], re.MULTILINE)) == {
        str(reason) for reason in Reason
    }


def dead_letter(*, waits_ms, died_at, **facts):
    died_at_ms = int(datetime.fromisoformat(died_at).replace(tzinfo=timezone.utc).timestamp() * 1000)
    found = {}
    for attempt, delay_ms in enumerate([*waits_ms, None], start=1):
        failure = Failure(attempt=attempt, at_ms=died_at_ms, error="", delay_ms=delay_ms, worker="worker1@app3")
        found = with_failure(found, failure)
    record = DeadRecord(
        **facts,
        queue="shop",
        dead_letter_key="shop",
        worker="worker1@app3",
        attempts=len(waits_ms) + 1,
        died_at_ms=died_at_ms,
    )
    return with_record(found, record)


DEAD_LETTERS = [
    dead_letter(
        reason=Reason.FAILED,
        task="example_project.shop.invoice",
        task_id="6f44607b-fec2-4443-ba01-a6af7d4259e6",
        died_at="2026-11-16T12:17:34",
        waits_ms=[],
        error_type="KeyError",
        error="'vat_id of order-2'",
    ),
    dead_letter(
        reason=Reason.REQUESTED,
        task="example_project.shop.refund",
        task_id="39899be2-d451-41b0-a028-2fdeb11d17d1",
        died_at="2026-11-16T12:17:34",
        waits_ms=[],
        error_type="DeadLetter",
        error="order-3 was paid in Drachma",
    ),
    dead_letter(
        reason=Reason.EXHAUSTED,
        task="example_project.shop.ship",
        task_id="7cd82915-9890-4b6f-8ecd-87914c52677f",
        died_at="2026-11-16T12:17:37",
        waits_ms=[1000, 2000],
        error_type="ConnectionError",
        error="the carrier says 410 Gone to order-1",
    ),
]


def anchors(page):
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def value_of(setting, written):
    value = eval(written, {"timedelta": timedelta})  # noqa: S307 - our own pages
    if not SETTINGS[setting].name.endswith("_ms"):
        return value
    return round((value.total_seconds() if isinstance(value, timedelta) else value) * 1000)


def leaves(group, path=""):
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from leaves(command, f"{path}{name} ")
        else:
            yield f"{path}{name}", command


def python(code, *, folder):
    """A process of its own for each: Celery apps of one process share their tasks' names."""
    return run(sys.executable, "-W", "error", "-c", code, folder=folder)


def celery(*arguments, folder=None):
    return run(sys.executable, "-m", "celery", *arguments, folder=folder)


def on_a_terminal(*command):
    ours, theirs = pty.openpty()
    with subprocess.Popen(command, stdout=theirs, stderr=subprocess.DEVNULL) as process:
        os.close(theirs)
        shown = b""
        with suppress(OSError):  # Linux's word for a terminal that everybody has left
            while found := os.read(ours, 65_536):
                shown += found
    os.close(ours)
    assert process.returncode == 0
    return shown.decode().replace("\r\n", "\n")


def run(*command, folder):
    environment = {**os.environ, "COLUMNS": "200"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout
