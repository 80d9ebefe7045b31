"""Write the terminal session of docs/dead-letters.md anew, from a real run.

    python docs/transcript.py  # or, with those of the other pages: make transcripts

Starts a RabbitMQ and a worker of the example shop, lets some of its tasks die, and repairs them as an operator would.
"""

from __future__ import annotations

import json
import os
import pty
import re
import shlex
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from celery import Celery

from tests.provision import provide

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "dead-letters.md"
SESSION = re.compile(r"(<!-- docs/transcript\.py writes this -->\n```console\n)(.*?)(```\n)", re.DOTALL)
DEAD = {"invoice": 3, "refund": 1, "ship": 1}
WIDTH = "166"


class Shop:
    """The example project with a name, a folder and a broker of its own."""

    def __init__(self, *, url: str, management_url: str, folder: Path, name: str = "shop") -> None:
        self._folder = folder
        self._environment = {
            **os.environ,
            "SHOP_BROKER_URL": url,
            "DLX_MANAGEMENT_URL": management_url,
            "SHOP_FOLDER": str(folder),
            "SHOP_NAME": name,
            "LOGNAME": "ops",
            "COLUMNS": WIDTH,
            "C_FORCE_ROOT": "1",
            "PYTHONWARNINGS": "ignore",
        }

    def start(self) -> subprocess.Popen[bytes]:
        """A worker, and tasks that die."""
        with (self._folder / "worker.log").open("wb") as log:
            worker = subprocess.Popen(  # noqa: S603 - ourselves
                [*self._celery("worker"), "--pool", "solo", "--hostname", "worker1@app3"],
                cwd=ROOT, env=self._environment, stdout=log, stderr=log,
            )  # fmt: skip
        sender = Celery(broker=self._environment["SHOP_BROKER_URL"], set_as_current=False)
        sender.conf.update(task_default_queue=self._environment["SHOP_NAME"], task_ignore_result=True)
        for task, count in DEAD.items():
            for number in range(count):
                sender.send_task(f"example_project.shop.{task}", [f"order-{number + 1}"])
        sender.close()
        return worker

    def session(self) -> str:
        """What the terminal shows, from five dead letters to none."""
        while "ship" not in self._run("dlx dead list")[0]:  # it is the last to die
            time.sleep(0.2)  # noqa: TID251 - until the stage is set
        told = [self._typed("dlx dead groups")]
        found, _ = self._run("dlx dead list --json --task *.invoice")
        invoices = [json.loads(line) for line in found.splitlines()]
        group, sample = invoices[0]["group"], invoices[0]["task_id"]
        told += [
            self._typed("dlx dead list --reason requested --reason exhausted --sort died"),
            self._typed(f"dlx dead show {sample} --args"),
            self._typed(f"dlx dead edit {sample} --set order='\"order-9\"' --yes"),
        ]
        (self._folder / "fixed").touch()  # the deployment that repairs the tasks
        canary = "--canary 1 --canary-wait 2 --silence-is-success"
        told += [
            self._typed(f"dlx dead replay --group {group} --dry-run"),
            self._typed(f"dlx dead replay --group {group} --rate 10/s {canary} --yes"),
            self._typed("dlx dead replay --all --yes"),
            self._typed("dlx dead list"),
        ]
        return "\n".join(told)

    def _typed(self, words: str) -> str:
        shown, also_told = self._run(words)
        return f"$ celery -A example_project.shop {words}\n{_told_elsewhere(shown + also_told.strip())}"

    def _run(self, words: str) -> tuple[str, str]:
        """On a terminal, as far as the command can tell; its output, and what it says besides."""
        ours, theirs = pty.openpty()
        command = self._celery(*shlex.split(words))
        with subprocess.Popen(  # noqa: S603
            command, cwd=ROOT, env=self._environment, stdout=theirs, stderr=subprocess.PIPE
        ) as process:
            os.close(theirs)
            shown, also_told = _drained(ours), process.stderr.read() if process.stderr else b""
        os.close(ours)
        return _plain(shown), _plain(also_told)

    @staticmethod
    def _celery(*words: str) -> list[str]:
        return [sys.executable, "-m", "celery", "-A", "example_project.shop", *words]


def _drained(terminal: int) -> bytes:
    shown = b""
    while True:
        try:
            found = os.read(terminal, 65536)
        except OSError:  # Linux's word for a terminal that everybody has left
            return shown
        if not found:
            return shown
        shown += found


def _plain(shown: bytes) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode()).replace("\r\n", "\n")


def _told_elsewhere(text: str) -> str:
    """Without what is true on this machine only."""
    for here, there in ((f"{ROOT}/", ""), (sys.base_prefix, "/usr"), (socket.gethostname(), "desk")):
        text = text.replace(here, there)
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


def made(*, url: str, management_url: str, folder: Path, name: str = "shop") -> str:
    """A session, with its worker started and ended."""
    shop = Shop(url=url, management_url=management_url, folder=folder, name=name)
    worker = shop.start()
    try:
        return shop.session()
    finally:
        worker.terminate()
        worker.wait(20)


def main() -> None:
    """Make one and write it into the page."""
    with provide() as broker, tempfile.TemporaryDirectory() as folder:
        session = made(url=broker.url, management_url=broker.management_url or "", folder=Path(folder))
    PAGE.write_text(SESSION.sub(lambda found: f"{found[1]}{session}{found[3]}", PAGE.read_text()))


if __name__ == "__main__":
    main()
