"""Every shell line on the pages is run, or checked in a way that has a name here; a line that nobody runs is a failure.

``WAYS`` says who is responsible for which lines. A new kind of line needs a new way, with a test that goes it.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shlex
import signal
import subprocess
import sys
import time
from contextlib import closing
from importlib.metadata import distribution
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

import pytest
from kombu.connection import Connection
from support import eventually

from celery_dlx_retry.policy.reasons import Reason
from celery_dlx_retry.topology.names import Names, WorkQueue
from celery_dlx_retry.wire.dead_record import DeadRecord, with_record
from tests.acceptance.tenancy import Tenancy
from tests.side_by_side import celery_exporter
from tests.workers import celery, start_worker

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / f"{name}.md" for name in ("README", "CHANGELOG", "CONTRIBUTING", "SECURITY")),
    *sorted((ROOT / "docs").glob("*.md")),
]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# Its lines run elsewhere, with the page's own app.
QUICK_START = "quickstart.md"


class Line(NamedTuple):
    page: str
    language: str
    text: str

    @property
    def words(self):
        return shlex.split(self.text, comments=True)

    def __str__(self):
        return f"{self.page}: {self.text}"


def on(page):
    """The page's lines as a shell reads them: what is continued, and what stands in quotes, is one."""
    for language, text in FENCE.findall(page.read_text()):
        if language == "console":
            yield from (Line(page.name, language, row[2:]) for row in text.splitlines() if row.startswith("$ "))
        elif language == "sh":
            begun = ""
            for row in text.splitlines():
                begun += row
                if begun.endswith("\\"):
                    begun = begun[:-1]
                elif is_open(begun):
                    begun += "\n"
                else:
                    yield Line(page.name, language, begun)
                    begun = ""
            assert not begun, f"{page.name}: {begun}"


def is_open(text):
    """Whether a quotation goes on in the next row."""
    try:
        shlex.split(text, comments=True)
    except ValueError:
        return True
    return False


LINES = [line for page in PAGES for line in on(page)]
WAYS = {
    "test_whoever_follows_the_page_sees_what_it_says": lambda line: line.page == QUICK_START,
    # test_cli_docs.py, test_cli_dead_docs.py and test_docs.py compare what is printed, too.
    "test_every_transcript_is_of_a_page_whose_sessions_are_compared": lambda line: line.language == "console",
    "test_every_command_does_its_work": lambda line: re.match(r"celery -A shop (-b \S+ )?dlx |rabbitmqctl ", line.text),
    "test_make_has_the_target": lambda line: line.text.startswith("make "),
    # tests/side_by_side runs celery-exporter in an environment of its own.
    "test_the_page_starts_celery_exporter_as_the_tests_do": lambda line: line.text in exporter_lines(),
    "test_the_program_takes_these_arguments": lambda line: line.text.startswith("python "),
    "test_pip_has_installed_this_checkout": lambda line: line.text.startswith("pip install "),
    # In tests/containers, where there is an engine.
    "test_the_shops_day_is_as_promised_in_containers": lambda line: line.text.startswith("docker compose "),
}


def exporter_lines():
    broker = "--broker-url amqp://guest:guest@127.0.0.1//"
    return [f"pip install {celery_exporter.REQUIREMENT}", f'python -c "{celery_exporter.COMMAND}" {broker}']


def way_of(line):
    """The first that takes it: the quick start has lines like those of other pages."""
    return next((name for name, takes in WAYS.items() if takes(line)), None)


def lines_of(name):
    return [line for line in LINES if way_of(line) == name]


def test_somebody_runs_every_line():
    assert [str(line) for line in LINES if way_of(line) is None] == [], "see WAYS"


def test_a_line_that_nobody_runs_would_be_found_out():
    assert way_of(Line("README.md", "sh", "docker run rabbitmq")) is None
    assert way_of(Line("adopt.md", "sh", "celery -A shop call shop.charge")) is None


def test_the_page_starts_celery_exporter_as_the_tests_do():
    assert [it.text for it in lines_of("test_the_page_starts_celery_exporter_as_the_tests_do")] == exporter_lines()


def test_every_way_is_a_test_and_has_lines():
    tests = "".join(path.read_text() for path in (ROOT / "tests").glob("*/test_*.py"))

    for name in WAYS:
        assert f"\ndef {name}(" in tests
        assert lines_of(name), name


def test_no_shell_line_hides_in_a_block_of_another_name():
    found = {language for page in PAGES for language, _ in FENCE.findall(page.read_text())}

    assert found <= {"python", "sh", "console", "text", "diff", "promql", "yaml"}


def test_every_transcript_is_of_a_page_whose_sessions_are_compared():
    compared = {
        "tour.md": r"celery -A example_project\.shop dlx dead list$",
        "monitoring.md": "promtool check rules alerts.yml$",
        "dead-letters.md": r"celery -A example_project\.shop dlx dead ",
        **dict.fromkeys(("commands.md", "doctor.md", "brokers.md"), "celery -A shop dlx "),
    }

    for line in lines_of("test_every_transcript_is_of_a_page_whose_sessions_are_compared"):
        assert re.match(compared[line.page], line.text), line


@pytest.mark.parametrize(
    "words", sorted({tuple(line.words[1:]) for line in lines_of("test_make_has_the_target")}), ids=str
)
def test_make_has_the_target(words):
    command = ["make", "--dry-run", "--always-make", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=30)

    assert done.returncode == 0, done.stderr
    known = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[1].split()
    assert [word for word in words if "=" not in word and word not in known] == []
    given = [word.partition("=")[2] for word in words if "=" in word]
    assert [flags for flags in given if flags not in done.stdout] == []


@pytest.mark.parametrize("line", lines_of("test_the_program_takes_these_arguments"), ids=str)
def test_the_program_takes_these_arguments(line):
    """They run for minutes; test_chaos.py and test_bench.py run small ones."""
    command = [sys.executable, *line.words[1:], "--help"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=30)

    assert done.returncode == 0, done.stderr
    assert [word for word in line.words if word.startswith("--") and word not in done.stdout] == []


@pytest.mark.parametrize("line", lines_of("test_pip_has_installed_this_checkout"), ids=str)
def test_pip_has_installed_this_checkout(line):
    """The environment of the tests was made in this way."""
    (what,) = line.words[2:]
    extras = re.fullmatch(r"\.(?:\[([\w,]+)\])?", what)[1]
    installed = distribution("celery-dlx-retry")

    assert json.loads(installed.read_text("direct_url.json"))["url"] == ROOT.as_uri()
    assert set(extras.split(",") if extras else ()) <= set(installed.metadata.get_all("Provides-Extra"))


APP = """\
from celery import Celery
from celery_dlx_retry import DLXRetryTask, dlx_queue

app = Celery("shop")
app.conf.update({conf!r})
app.conf.task_queues = [
    dlx_queue("orders"), dlx_queue("payments"), dlx_queue("big"), dlx_queue("orders.q", queue_type="quorum"),
]
app.conf.dlx_doctor_accept = ["dead-letters-growing"]  # the tests make many

@app.task(base=DLXRetryTask, policy=[60, 600])
def charge(order_id):
    return order_id
"""
# One for all commands: a tenth of a second each instead of one. Nothing there is young enough to be killed.
PROCESS = """
import json, sys
from celery.bin.celery import celery
from celery_dlx_retry.broker import declare
from click.testing import CliRunner
declare.SETTLE_SECONDS = 0.0
for line in sys.stdin:
    done = CliRunner(env={"CELERY_BROKER_URL": None}).invoke(celery, json.loads(line), input="y\\n")
    print(json.dumps([done.exit_code, done.output, repr(done.exception)]), flush=True)
"""
# What stands on the pages; here each command has a task of its own, for whose result nobody wrote before.
PAGES_ID, PAGES_GROUP = "6f44607b-fec2-4443-ba01-a6af7d4259e6", "3f2a9c01"
# A hand that edits, and a rabbitmqctl that takes what is imported from its input, wherever the broker is.
PROGRAMS = {
    "editor": 'sed -i s/order-1/order-9/ "$1"',
    "rabbitmqctl": '[ "$*" = "import_definitions --format json" ]\ncat > dlx.json',
}
NAMES, ORDERS = Names(), WorkQueue(name="orders")
# As `rabbitmq-plugins enable rabbitmq_shovel`, which is not ours to run in a container.
SHOVEL = """
{ok, File} = application:get_env(rabbit, enabled_plugins_file),
ok = file:write_file(File, "[rabbitmq_management,rabbitmq_shovel]."),
rabbit_plugins:ensure(File).
"""
NOTHING = re.compile(r"^(0 (replayed|purged|exported|imported|would be|waiting)|Nothing was changed)", re.MULTILINE)


class Shop:
    """The shop of all pages, in a virtual host of its own: every name is the page's."""

    def __init__(self, broker, management, tenancy, folder):
        self._broker, self._management, self._tenancy, self._folder = broker, management, tenancy, folder
        (folder / "results").mkdir()
        conf = {
            "broker_url": tenancy.url,
            "broker_transport_options": {"confirm_publish": True},
            "result_backend": f"file://{folder / 'results'}",
            "task_default_queue": "orders",
        }
        (folder / "shop.py").write_text(APP.format(conf=conf))
        programs = folder / "bin"
        programs.mkdir()
        for name, script in PROGRAMS.items():
            (programs / name).write_text(f"#!/bin/sh -e\n{script}\n")
            (programs / name).chmod(0o755)
        self._environment = {
            **os.environ,
            "DLX_MANAGEMENT_URL": broker.management_url,
            "EDITOR": str(programs / "editor"),
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            "C_FORCE_ROOT": "1",
        }
        self._process = self._popen([sys.executable, "-c", PROCESS], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.task_id = str(uuid4())
        self.dlx("declare")
        self.bury()
        self._group = json.loads(self.dlx("dead", "groups", "--json").splitlines()[0])["group"]
        self.worker = None

    def start(self):
        command = celery("shop", "worker", "--loglevel", "INFO", "--pool", "solo", "--without-mingle")
        log, environment = self._folder / "worker.log", self._environment
        self.worker = start_worker(command, log=log, environment=environment, cwd=self._folder).wait_until_ready()

    def close(self):
        if self.worker:
            self.worker.stop()
        self._process.communicate(timeout=20)

    def dlx(self, *words, before=()):
        """What it prints; it has to end well."""
        self._process.stdin.write(json.dumps(["-A", "shop", *before, "dlx", *words]) + "\n")
        self._process.stdin.flush()
        code, output, exception = json.loads(self._process.stdout.readline())
        assert code == 0, f"celery dlx {' '.join(words)}: {output} {exception}"
        return output

    def run(self, line):
        """A line as the page has it, with this broker, this task and this group for the page's."""
        self.task_id = str(uuid4())
        command, redirection, rest = self._parsed(line)
        if command[0] == "rabbitmqctl":
            self.ctl(*command[1:])
            return
        assert command[:3] == ["celery", "-A", "shop"]
        before, words = command[3 : command.index("dlx")], command[command.index("dlx") + 1 :]
        self.prepare(words)
        if words[0] == "watch":
            self.watch(words)
            return
        printed = self.dlx(*words, before=before)
        assert not NOTHING.search(printed), f"{line} had nothing to do: {printed}"
        if redirection == ">":
            (self._folder / rest).write_text(printed)
        elif redirection == "|":
            subprocess.run([rest], cwd=self._folder, env=self._environment, input=printed, text=True, check=True)
            rest = "dlx.json"  # into which our rabbitmqctl puts what it is told to import
        if rest == "dlx.json":
            self.imports(json.loads((self._folder / rest).read_text()))

    def imports(self, definitions):
        """What ``rabbitmqctl import_definitions`` does, over the HTTP API, and all of it stands."""
        missing = NAMES.lane(ORDERS, 60_000)
        with Connection(self._tenancy.url) as connection:
            connection.default_channel.queue_delete(missing)
        self._management.call("POST", "/definitions", definitions)
        eventually(lambda: self.depth(missing) is not None)
        assert "The broker matches the plan." in self.dlx("check")

    def ctl(self, command, *words):
        moved = words[0] == "shovel"
        if moved:
            self._broker.ctl("eval", SHOVEL)
            self._publish("", "orders", {"task": "shop.charge", "id": self.task_id})
        self._broker.ctl(command, "--vhost", self._tenancy.vhost, *words)
        if moved:
            eventually(lambda: self.depth("orders.q") and not self.depth("orders"))

    def depth(self, queue):
        with Connection(self._tenancy.url) as connection:
            return connection.default_channel.queue_declare(queue, passive=True).message_count

    def _parsed(self, line):
        """Words, and where the output goes to: into a file, or to a shell."""
        text = line.text.replace(PAGES_ID, self.task_id).replace(PAGES_GROUP, self._group)
        text = text.replace('"amqp://"', f'"amqp:///{self._tenancy.vhost}"')
        text = re.sub(r"amqp://admin@\S+", self._tenancy.url, text)
        text = re.sub(r"https://monitor:\S+", self._broker.management_url, text)
        words = shlex.split(text, comments=True)
        for mark in (">", "|"):
            if mark in words:
                assert len(words) == words.index(mark) + 2, line
                return words[: words.index(mark)], mark, words[-1]
        return words, "", ""

    def prepare(self, words):
        """What happened before the command of the page: something died, or waits, or was exported."""
        match words[:2]:
            case ["dead", "export"]:
                (self._folder / "letters.jsonl").unlink(missing_ok=True)
                self.bury()
            case ["dead", "import"] if not (self._folder / "letters.jsonl").exists():
                self.dlx("dead", "export", "--output", "letters.jsonl")
            case ["dead", "replay"] if NAMES.orphans() in words:
                self._publish(NAMES.return_exchange(), "gone", {"task": "shop.charge", "id": self.task_id})
                eventually(lambda: "1 dead" in self.dlx("dead", "list", "-q", NAMES.orphans()))
            case ["dead", "edit"]:
                self.bury()
                if "--undo" in words:
                    self.dlx("dead", "edit", self.task_id, "--set", 'order_id="order-7"', "--yes")
            case ["dead", _]:
                self.bury()
            case ["waiting", _]:
                lane = NAMES.lane(ORDERS, 600_000)
                self._publish(NAMES.lanes(), lane, {"task": "shop.charge", "id": self.task_id, "retries": 1})
            case ["check" | "doctor" | "prune", *_]:
                self.dlx("declare")  # a page before may have pruned, or deleted a queue

    def bury(self):
        """Only these: one of this morning's, one of an unknown task, and one that nobody has cared for."""
        now_ms = time.time_ns() // 1_000_000
        with Connection(self._tenancy.url) as connection:
            connection.default_channel.queue_purge("orders.dead")
        for task_id, reason, age_ms in (
            (self.task_id, Reason.FAILED, 60_000),
            (str(uuid4()), Reason.UNKNOWN_TASK, 60_000),
            (str(uuid4()), Reason.FAILED, 40 * 86_400_000),
        ):
            record = DeadRecord(
                reason=reason, task="shop.charge", task_id=task_id, worker="w@app3", queue="orders",
                dead_letter_key="orders",
                attempts=1, died_at_ms=now_ms - age_ms, error_type="ConnectionError",
                error="the bank is closed (its policy failed: KeyError)",
            )  # fmt: skip
            headers = {"task": "shop.charge", "id": task_id, "retries": 0, "lang": "py"}
            self._publish(NAMES.dead(), "orders", with_record(headers, record))

    def _publish(self, exchange, routing_key, headers):
        with Connection(self._tenancy.url, transport_options={"confirm_publish": True}) as connection:
            embed = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}
            connection.Producer().publish(
                [["order-1"], {}, embed],
                exchange=exchange,
                routing_key=routing_key,
                headers={"lang": "py", **headers},
                correlation_id=headers["id"],
                mandatory=True,
                serializer="json",
            )

    def watch(self, words):
        with self._popen(celery("shop", "dlx", *words), stdout=subprocess.PIPE) as process:
            assert any(line.startswith("work queue ") for line in process.stdout)
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=20)
        assert process.returncode == 0

    def _popen(self, command, **options):
        text = options.get("stdout") == subprocess.PIPE
        return subprocess.Popen(command, cwd=self._folder, env=self._environment, text=text, **options)


@pytest.fixture(scope="module")
def shop(broker, http_api, tmp_path_factory):
    with (
        closing(Tenancy(broker, http_api, f"t{secrets.token_hex(4)}")) as tenancy,
        closing(Shop(broker, http_api, tenancy, tmp_path_factory.mktemp("shop"))) as it,
    ):
        it.start()
        yield it


COMMANDS = lines_of("test_every_command_does_its_work")
# In the end the old queue is deleted, and with it what other pages want.
LAST = "quorum.md"


@pytest.mark.parametrize("page", sorted({line.page for line in COMMANDS}, key=lambda name: (name == LAST, name)))
def test_every_command_does_its_work(shop, broker, page):
    lines = [line for line in COMMANDS if line.page == page]
    if not broker.can_restart and any(line.words[0] == "rabbitmqctl" for line in lines):
        pytest.skip("rabbitmqctl is only for a broker of our own")
    if page == LAST:
        shop.worker.stop()  # as the page says, no worker consumes the old queue any more

    for line in lines:
        shop.run(line)
