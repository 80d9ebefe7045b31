"""A bar on a terminal: what is printed meanwhile stays whole, and nothing of the bar is left."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pyte

CODE = """
import time
from celery_dlx_retry.cli import output
output._BAR_SECONDS = 0.0
with output.monitored("replaying") as monitor:
    for number in range(1, 21):
        monitor.progress(number, 20)
        if number % 4 == 0:
            output.echo(f"replayed {number}")
        if number % 10 == 0:
            output.json_line({"event": "replayed", "name": "\\u00e4"})
print("20 replayed")
"""


def test_lines_that_are_printed_beside_a_bar_stay_whole():
    ours, theirs = os.openpty()
    with subprocess.Popen([sys.executable, "-c", CODE], stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        shown = b""
        try:
            while data := os.read(ours, 65_536):
                shown += data
        except OSError:  # the process has closed its terminal
            pass
    os.close(ours)
    screen = pyte.Screen(80, 24)
    pyte.ByteStream(screen).feed(shown)

    assert process.returncode == 0
    assert re.search(rb"replaying: 7 of 20, 35 %", shown)
    assert [line.rstrip() for line in screen.display if line.strip()] == [
        "replayed 4", "replayed 8", '{"event": "replayed", "name": "\\u00e4"}', "replayed 12", "replayed 16",
        "replayed 20", '{"event": "replayed", "name": "\\u00e4"}', "20 replayed",
    ]  # fmt: skip
