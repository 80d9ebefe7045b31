"""Draw the terminal pictures of the README and of docs/commands.md, such as docs/pictures/status.svg, from a real run.

    python docs/terminal.py  # or, with all other sessions: make transcripts

Starts a RabbitMQ and a worker of a small shop, sends tasks that fail, and records what some commands print.
"""

from __future__ import annotations

import io
import os
import pty
import re
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from celery import Celery
from rich.color import Color
from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from tests.provision import provide

PICTURES = Path(__file__).parent / "pictures"
COMMANDS = {
    "status": "celery -A shop dlx status",
    "groups": "celery -A shop dlx dead groups",
    # When the worker has stopped:
    "top": "celery -A shop dlx",
    "top_wide": "celery -A shop dlx top --lanes",
}
WIDTHS = {"status": 146, "groups": 146, "top": 80, "top_wide": 160}
SENT = {"charge": 3, "invoice": 2, "refund": 1}
SHOP = """\
import os

from celery import Celery
from celery_dlx_retry import DEAD, Delays, DLXRetryTask, On

app = Celery("shop", broker=os.environ["SHOP_BROKER_URL"])
app.conf.update(dlx_prefix="shop", task_default_queue="orders", task_ignore_result=True)


@app.task(base=DLXRetryTask, policy=Delays([600, 3600]))
def charge(order):
    raise ConnectionError(f"the bank answers 503 for {order}")


@app.task(base=DLXRetryTask, policy=Delays([600], rules=[On(KeyError, DEAD)]))
def invoice(order):
    raise KeyError(f"vat_id of {order}")


@app.task(bind=True, base=DLXRetryTask)
def refund(self, order):
    self.dead_letter(f"{order} was paid in Drachma")
"""
COLOURS = ["#484f58", "#ff7b72", "#7ee787", "#e3b341", "#79c0ff", "#d2a8ff", "#56d4dd", "#e8eaed"]
THEME = TerminalTheme((20, 24, 31), (232, 234, 237), [Color.parse(name).get_truecolor() for name in COLOURS])
# Rich's own template loads a font from another host.
TEMPLATE = """\
<svg xmlns="http://www.w3.org/2000/svg" class="rich-terminal" viewBox="0 0 {width} {height}" role="img">
<style>
.{unique_id}-matrix {{ font: {char_height}px ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace; }}
.{unique_id}-matrix text {{ white-space: pre; }}
{styles}
</style>
<defs>{lines}</defs>
<rect fill="#14181f" width="{width}" height="{height}" rx="8"/>
<g transform="translate({terminal_x}, 26)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def recorded(*, url: str, management_url: str, folder: Path) -> dict[str, str]:
    """Return what the terminal shows for each command, with its colours."""
    folder = folder / "project"  # a part of what the groups show
    folder.mkdir()
    (folder / "shop.py").write_text(SHOP)
    environment = {
        **os.environ,
        "SHOP_BROKER_URL": url,
        "DLX_MANAGEMENT_URL": management_url,
        "TERM": "xterm-256color",
        "C_FORCE_ROOT": "1",
    }
    with (folder / "worker.log").open("wb") as log:
        worker = subprocess.Popen(
            [sys.executable, "-m", "celery", "-A", "shop", "worker", "--pool", "solo"],
            cwd=folder, env=environment, stdout=log, stderr=log,
        )  # fmt: skip
    try:
        _send(url)
        while not _is_complete(shown := _run("status", folder, environment)):
            if worker.poll() is not None:
                raise ChildProcessError((folder / "worker.log").read_text())
            time.sleep(0.2)  # noqa: TID251 - until all tasks have failed and the HTTP API has counted
        session = {"status": shown, "groups": _run("groups", folder, environment)}
    finally:
        worker.terminate()
        worker.wait(20)
    while "No worker consumes" not in (shown := _run("top", folder, environment)):
        time.sleep(0.2)  # noqa: TID251 - until the broker has noticed
    return {**session, "top": shown, "top_wide": _run("top_wide", folder, environment)}


def drawn(command: str, shown: str, *, name: str) -> str:
    """Return the SVG of a terminal with the command and its output."""
    console = Console(record=True, width=WIDTHS[name], file=io.StringIO(), force_terminal=True)
    console.print(Text(f"$ {command}", style="bold green"))
    for line in shown.splitlines():
        console.print(Text.from_ansi(line), soft_wrap=True)
    svg = console.export_svg(theme=THEME, code_format=TEMPLATE, unique_id=name)
    svg = re.sub(r"<clipPath.*?</clipPath>| clip-path=\"[^\"]*\"", "", svg, flags=re.DOTALL)  # no line is too long
    return re.sub(r"\s*\n\s*", "\n", svg)


def text_of(svg: str) -> list[str]:
    """Return the lines that a picture shows."""
    rows: dict[float, list[tuple[float, str]]] = {}
    for attributes, text in re.findall(r"<text ([^>]*)>([^<]*)</text>", svg):
        x, y = (float(re.findall(rf'\b{axis}="([\d.]+)"', attributes)[0]) for axis in "xy")
        rows.setdefault(y, []).append((x, text))
    lines = ["".join(text for _, text in sorted(rows[y])) for y in sorted(rows)]
    return [re.sub(r"&#160;|&nbsp;|\xa0", " ", line).rstrip() for line in lines]


def _is_complete(shown: str) -> bool:
    """Whether all tasks have failed, the worker consumes, and the HTTP API knows each figure."""
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in _plain(shown).splitlines() if "│" in line]
    known = all(cell != "-" for row in rows for cell in row[2:6])
    return known and bool(rows) and rows[0][4] == "1" and "3 waiting in 1 lane, 3 dead" in shown


def _plain(shown: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown)


def _send(url: str) -> None:
    sender = Celery(broker=url, set_as_current=False)
    sender.conf.update(task_default_queue="orders", task_ignore_result=True)
    for task, count in SENT.items():
        for number in range(count):
            sender.send_task(f"shop.{task}", [f"order-{number + 1}"])
    sender.close()


def _run(name: str, folder: Path, environment: dict[str, str]) -> str:
    ours, theirs = pty.openpty()
    with subprocess.Popen(  # noqa: S603
        [sys.executable, "-m", *shlex.split(COMMANDS[name])],
        cwd=folder, env={**environment, "COLUMNS": str(WIDTHS[name])}, stdout=theirs, stderr=subprocess.DEVNULL,
    ):  # fmt: skip
        os.close(theirs)
        shown = b""
        try:
            while found := os.read(ours, 65536):
                shown += found
        except OSError:  # the command has closed its terminal
            pass
    os.close(ours)
    return shown.decode().replace("\r\n", "\n")


def main() -> None:
    """Record a session and draw it."""
    with provide() as broker, tempfile.TemporaryDirectory() as folder:
        session = recorded(url=broker.url, management_url=broker.management_url or "", folder=Path(folder))
    for name, shown in session.items():
        (PICTURES / f"{name}.svg").write_text(drawn(COMMANDS[name], shown, name=name))


if __name__ == "__main__":
    main()
