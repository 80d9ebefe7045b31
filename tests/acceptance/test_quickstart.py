"""docs/quickstart.md to the letter: its app, its commands, a worker that is killed, and what the page says of it."""

from __future__ import annotations

import os
import re
import secrets
import shlex
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from amqp.exceptions import NotFound
from kombu.connection import Connection
from support import eventually

from tests.acceptance.tenancy import Tenancy
from tests.workers import Worker, start_worker

PAGE = Path(__file__).parents[2] / "docs" / "quickstart.md"
# Nobody needs half a minute to see it.
SHORTER = {"Delays([5, 30])": "Delays([3, 1])", "delay_ms=5000": "delay_ms=3000", ".000000005000": ".000000003000"}
BROKER = "amqp://guest:guest@127.0.0.1//"
BROKEN = re.compile(r"^    raise .*$", re.MULTILINE)


class Reader:
    """Somebody with the page in one window and a terminal in another."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url, self._folder = url, folder
        self.page = PAGE.read_text()
        for long, short in SHORTER.items():
            assert long in self.page
            self.page = self.page.replace(long, short)
        (self._app,) = re.findall(r"```python\n(.*?)```", self.page, re.DOTALL)
        self._commands = iter(re.findall(r"```sh\n(.*)\n```", self.page))
        self._worker_command = next(self._commands)
        self.workers: list[Worker] = []
        self.saves(self._app)

    def saves(self, code: str) -> None:
        assert BROKER in code
        (self._folder / "shop.py").write_text(code.replace(BROKER, self.url))

    def repairs(self) -> None:
        assert BROKEN.search(self._app)
        self.saves(BROKEN.sub('    return "paid"', self._app))

    def starts_the_worker(self) -> Worker:
        log = self._folder / f"worker-{len(self.workers)}.log"
        command = self._words(self._worker_command)
        self.workers.append(start_worker(command, log=log, environment=os.environ, cwd=self._folder))
        return self.workers[-1].wait_until_ready()

    def runs_the_next_command(self, answer: str = "") -> str:
        done = subprocess.run(
            self._words(next(self._commands)),
            cwd=self._folder,
            input=answer,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def is_done(self) -> bool:
        return next(self._commands, None) is None

    def reads(self, beginning: str) -> re.Pattern[str]:
        """What the page says that the worker says."""
        (quote,) = re.findall(rf"`({beginning}[^`]*)`", self.page)
        return re.compile(".*".join(re.escape(part) for part in quote.split("…")))

    def waits_in(self, queue: str) -> bool:
        with Connection(self.url) as connection:
            try:
                return bool(connection.default_channel.queue_declare(queue, passive=True).message_count)
            except NotFound:
                return False

    @staticmethod
    def _words(command: str) -> list[str]:
        program, *words = shlex.split(command)
        assert program == "celery"
        return [sys.executable, "-m", "celery", *words]


@pytest.fixture
def reader(broker, http_api, tmp_path):
    with closing(Tenancy(broker, http_api, f"t{secrets.token_hex(4)}")) as tenancy:
        it = Reader(tenancy.url, tmp_path)
        yield it
        for worker in it.workers:
            if worker.process.poll() is None:
                worker.kill()


def test_whoever_follows_the_page_sees_what_it_says(reader):
    first = reader.starts_the_worker()
    before_ready = first.log.partition(" ready.")[0]
    assert reader.reads("topology stands").search(before_ready)

    task_id = reader.runs_the_next_command().strip()
    eventually(lambda: reader.reads("retry scheduled").search(first.log))
    (wait_queue,) = re.findall(r"`(dlx\.v2\.wait[^`]*)`", reader.page)
    assert reader.waits_in(wait_queue)
    first.kill()
    assert first.log.count("the bank is closed, attempt 1") > 0
    assert "attempt 2" not in first.log

    second = reader.starts_the_worker()
    eventually(lambda: reader.reads("dead letter").search(second.log))
    assert "attempt 2" in second.log
    listed = reader.runs_the_next_command()
    for told in ("exhausted", "ConnectionError: the bank is closed, attempt 3", "3s 1s", "celery@", task_id):
        assert told in listed

    second.stop()
    reader.repairs()
    third = reader.starts_the_worker()
    reader.runs_the_next_command(answer="y\n")
    eventually(lambda: re.search(rf"{task_id}\] succeeded in .*: 'paid'", third.log))
    assert reader.is_done()
