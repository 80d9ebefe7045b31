"""The transcripts on the pages are what the commands print; DLX_WRITE_TRANSCRIPTS=1 writes them anew."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
from amqp import Message
from kombu.connection import Connection
from support import eventually

from celery_dlx_retry.broker.declare import declare
from celery_dlx_retry.broker.queue_status import QueueState
from celery_dlx_retry.broker.waiting import WaitingTask
from celery_dlx_retry.policy.reasons import Reason
from celery_dlx_retry.topology.drift import Drift
from celery_dlx_retry.topology.names import Names, WorkQueue
from celery_dlx_retry.topology.objects import lane
from celery_dlx_retry.wire.dead_record import DeadRecord, with_record
from celery_dlx_retry.wire.headers import Failure, with_failure

DOCS = Path(__file__).parents[2] / "docs"
PAGES = [DOCS / "commands.md", DOCS / "doctor.md", DOCS / "brokers.md"]
BLOCK = re.compile(r"```console\n\$ celery -A shop dlx ([^\n]*)\n(.*?)```\n", re.DOTALL)
# Of another app: test_the_strict_app_of_the_page_runs_with_what_the_command_prints has it.
STRICT = "permissions worker-that-checks sender"
AT_MS = 1_794_831_454_000  # 2026-11-16 12:17:34
IDS = ["6f44607b-fec2-4443-ba01-a6af7d4259e6", "39899be2-d451-41b0-a028-2fdeb11d17d1"]
# One for all commands: a tenth of a second each instead of one. Not ours: Celery apps of one process share their tasks.
PROCESS = """
import sys
from celery.bin.celery import celery
from click.testing import CliRunner
for line in sys.stdin:
    done = CliRunner().invoke(celery, ["-A", "shop", "dlx", *line.split()])
    print(done.output, end=chr(0), flush=True)
"""


class Shop:
    """The app of the page, under names of its own that read as those of the page."""

    def __init__(self, broker, prefix, folder):
        self.broker, self.prefix = broker, prefix
        self.names = Names(prefix=prefix)
        self.work = f"{prefix}-orders"
        self.work_queue = WorkQueue(name=self.work)
        (app,) = re.findall(r"```python\n(.*?)```", PAGES[0].read_text(), re.DOTALL)
        settings = {"broker_url": broker.url, "dlx_prefix": prefix, "task_default_queue": self.work}
        (folder / "shop.py").write_text(f"{app}\napp.conf.update({settings!r})\n")
        self._process = subprocess.Popen(
            [sys.executable, "-c", PROCESS],
            cwd=folder,
            env={**os.environ, "DLX_MANAGEMENT_URL": broker.management_url},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def dlx(self, command):
        self._process.stdin.write(f"{command}\n")
        self._process.stdin.flush()
        printed = "".join(iter(lambda: self._process.stdout.read(1), "\0"))
        return self.as_on_the_page(printed)

    def close(self):
        self._process.communicate(timeout=20)

    def as_on_the_page(self, text):
        text = text.replace(self.work, "orders").replace(self.prefix, "dlx")
        text = re.sub(r"by=\S+", "by=ops@app3", text)
        text = re.sub(r", in \d+ s$", ", in 42 s", text, flags=re.MULTILINE)
        # Counts and rates of the HTTP API are some seconds old.
        row = r"^(work|wait|dead|orphans)\t(\S+\t\S+)\t\S+\t(\d+)\t\S+\t\S+\t"
        return re.sub(
            row,
            lambda it: f"{it[1]}\t{it[2]}\t0\t{it[3]}\t0.0\t{'0.0' if it[1] == 'work' else '-'}\t",
            text,
            flags=re.MULTILINE,
        )

    def prepare(self, command):
        """What happened before the command of the page."""
        with Connection(self.broker.url) as connection:
            if command == "check":
                connection.default_channel.queue_delete(self.lane_of(60_000))
            elif command == "status":
                for delay_ms in (60_000, 360_738):
                    declare(connection, lane(self.names, self.work_queue, delay_ms))
                for task_id in IDS:
                    self.put(connection, self.names.lanes(), self.lane_of(600_000), self.retry(task_id))
                self.put(connection, self.names.dead(), self.work, self.dead_letter())
                eventually(lambda: "000000360738" in self.dlx("status --all"))
            elif command.startswith("prune"):
                # RabbitMQ counts a new queue only after some seconds, and prune leaves it alone until then.
                eventually(lambda: "1 empty lane would go" in self.dlx("prune --dry-run"))

    def lane_of(self, delay_ms):
        return self.names.lane(self.work_queue, delay_ms)

    def put(self, connection, exchange, routing_key, headers):
        channel = connection.default_channel
        channel.confirm_select()
        message = Message("[]", application_headers=headers, delivery_mode=2)
        channel.basic_publish_confirm(message, exchange=exchange, routing_key=routing_key)

    def retry(self, task_id):
        failure = Failure(
            attempt=2, at_ms=AT_MS, error="ConnectionError: the bank is closed", delay_ms=600_000, worker="w@app3"
        )
        return {"task": "shop.charge", "id": task_id, "retries": 2, **with_failure({}, failure)}

    def dead_letter(self):
        record = DeadRecord(
            reason=Reason.EXHAUSTED, task="shop.charge", task_id="7cd82915-9890-4b6f-8ecd-87914c52677f",
            queue=self.work, dead_letter_key=self.work, worker="w@app3", attempts=3, died_at_ms=AT_MS,
        )  # fmt: skip
        return with_record({}, record)


@pytest.fixture
def shop(broker, http_api, prefix, tmp_path):
    assert http_api
    it = Shop(broker, prefix, tmp_path)
    yield it
    it.close()


def test_every_transcript_is_what_the_command_prints(shop):
    for page in PAGES:
        for command, promised in BLOCK.findall(page.read_text()):
            if command == STRICT:
                continue
            shop.prepare(command)
            printed = shop.dlx(command)
            if os.environ.get("DLX_WRITE_TRANSCRIPTS"):
                head = f"```console\n$ celery -A shop dlx {command}\n"
                page.write_text(page.read_text().replace(f"{head}{promised}```", f"{head}{printed}```"))
            else:
                assert printed == promised, command


@pytest.mark.parametrize(
    ("heading", "values"), [("check", Drift), ("status", QueueState), ("waiting list", WaitingTask)]
)
def test_every_field_of_the_json_is_on_the_page(heading, values):
    section = PAGES[0].read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    described = {
        name for row in re.findall(r"^\| (`.*?) \|", section, re.MULTILINE) for name in re.findall(r"\w+", row)
    }

    assert described == {field.name for field in fields(values)}
