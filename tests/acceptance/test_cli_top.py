"""``celery dlx``, ``top`` and ``watch`` on a real project; ``watch`` in a real terminal."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import signal
import struct
import subprocess
import termios
import threading

import pyte
import pytest
from support import eventually

from tests.acceptance.commandline import invoke
from tests.worker.stage import stage

SIZES = [(80, 24), (160, 50)]


@pytest.fixture(scope="module")
def project(request):
    with stage(request) as it:
        yield it


@pytest.fixture(scope="module")
def mess(project, dlx):
    """Two kinds of dead letters, and a task that waits ten minutes."""
    project.start(pool="solo").wait_until_ready()
    for _ in range(3):
        project.send("fail")
    project.send("nonsense")
    project.send("heal", 1, 600)
    eventually(lambda: len(project.dead()) == 4 and project.depth(project.grid_lane(600_000)) == 1)
    return eventually(lambda: (it := dlx.json("top")[0])["queues"][0]["waiting"] == 1 and it)


def test_the_screen_has_the_queue_its_groups_and_what_waits(project, dlx, mess):
    (queue,) = mess["queues"]

    assert (queue["queue"], queue["dead"], queue["dead_lately"], queue["workers"]) == (project.queue, 4, 4, 1)
    assert (mess["groups"][0]["count"], mess["groups"][0]["error"]) == (3, "ValueError")
    assert mess["problems"] == []
    for shown in (dlx(), dlx("top")):
        assert shown.startswith("Nothing is wrong now.\n\nwork queue  ")
        assert f"\n{mess['groups'][0]['group']} " in shown


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_the_screen_fits_a_pipe_of_this_width(project, dlx, mess, width, height):
    assert mess
    shown = subprocess.run(
        dlx.command(), env={**dlx.environment(), "COLUMNS": f"{width}", "LINES": f"{height}"},
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip

    lines = shown.stdout.splitlines()
    assert shown.stderr == ""
    assert lines[0] == "Nothing is wrong now."
    assert max(map(len, lines)) <= width
    assert any(line.startswith(project.queue[:10]) for line in lines)
    assert any(line.split()[:2] == [mess["groups"][0]["group"], "3"] for line in lines)


def test_the_lanes_are_one_number_unless_asked_for_and_quick_reads_no_letter(project, dlx, mess):
    assert mess
    lane = project.grid_lane(600_000)

    assert lane not in dlx("top")
    assert lane in dlx("top", "--lanes")
    assert "ValueError" not in dlx("top", "--quick")
    assert dlx.json("top", "--quick")[0]["groups"] is None


def test_without_an_app_the_command_alone_is_the_help():
    shown = invoke("dlx")

    assert shown.exit_code == 0
    assert "Commands:" in shown.output


class Terminal:
    """A command in a pseudo-terminal of this size, and what the terminal shows."""

    def __init__(self, command, environment, *, width, height):
        self._screen = pyte.Screen(width, height)
        self._stream, self._lock = pyte.ByteStream(self._screen), threading.Lock()
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
        self.raw = b""
        hidden = {"COLUMNS", "LINES"}
        self.process = subprocess.Popen(
            command, env={key: value for key, value in environment.items() if key not in hidden},
            stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
        )  # fmt: skip
        self.before = termios.tcgetattr(theirs)
        self._theirs = theirs
        threading.Thread(target=self._feed, daemon=True).start()

    def _feed(self):
        with contextlib.suppress(OSError):
            while data := os.read(self._ours, 65_536):
                with self._lock:
                    self.raw += data
                    self._stream.feed(data)

    @property
    def lines(self):
        with self._lock:
            return [line.rstrip() for line in self._screen.display]

    @property
    def reversed(self):
        """The rows in reverse video."""
        with self._lock:
            return [number for number, row in self._screen.buffer.items() if row[0].reverse]

    def shows(self, text):
        return eventually(lambda: any(text in line for line in self.lines), within=60)

    def press(self, keys):
        os.write(self._ours, keys)

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(20)
        os.close(self._theirs)


@pytest.fixture
def terminal(dlx):
    opened = []

    def start(*words, width=80, height=24):
        opened.append(Terminal(dlx.command(*words), dlx.environment(), width=width, height=height))
        return opened[-1]

    yield start
    for each in opened:
        each.close()


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_the_live_screen_has_keys_and_leaves_the_terminal_as_it_was(terminal, project, mess, width, height):
    first, second = (it["group"] for it in mess["groups"])
    it = terminal("watch", "--interval", "0.5", width=width, height=height)

    it.shows(first)
    it.shows(project.queue[:10])
    assert it.lines[-1].startswith("q quits")
    (chosen,) = it.reversed
    assert it.lines[chosen].startswith(first)

    it.press(b"\x1b[B")
    eventually(lambda: [it.lines[row][:8] for row in it.reversed] == [second])
    it.press(b"\r")
    it.shows(f"dlx dead list --group {second}")
    it.press(b"\x1b")
    it.shows("last seen")
    it.press(b"?")
    it.shows("this help")
    it.press(b"?")
    it.shows("last seen")
    it.press(b"l")
    it.shows(project.grid_lane(600_000)[:20])
    it.press(b"q")

    assert it.process.wait(30) == 0
    assert termios.tcgetattr(it._theirs) == it.before
    assert it.raw.rstrip().endswith(b"\x1b[?7h\x1b[?25h\x1b[?1049l")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, 128 + signal.SIGTERM)])
def test_a_signal_ends_the_live_screen_and_leaves_the_terminal_as_it_was(terminal, mess, number, code):
    it = terminal("watch")
    it.shows(mess["groups"][0]["group"])

    it.process.send_signal(number)

    assert it.process.wait(30) == code
    eventually(lambda: it.raw.rstrip().endswith(b"\x1b[?1049l"))
    assert termios.tcgetattr(it._theirs) == it.before


def test_watch_prints_json_again_and_again_in_a_pipe_and_ends_well_at_ctrl_c(dlx, project, mess):
    assert mess
    with dlx.start("watch", "--interval", "0.2", "--json") as process:
        seen = [json.loads(process.stdout.readline()) for _ in range(3)]
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)

    assert [it["queues"][0]["queue"] for it in seen] == [project.queue] * 3
    assert seen[0]["read_at_ms"] < seen[2]["read_at_ms"]
    assert (process.returncode, err) == (0, "")


def test_watch_goes_on_while_the_broker_is_down_and_shows_the_error_as_it_is(terminal, dlx):
    environment = {**dlx.environment()}
    environment["PROJECT_CONF"] = json.dumps(
        {**json.loads(environment["PROJECT_CONF"]), "broker_url": "amqp://127.0.0.1:1/[red]"}
    )
    it = Terminal(dlx.command("watch"), environment, width=100, height=24)
    try:
        it.shows("The broker at 127.0.0.1:1, virtual host '[red]', cannot be used")
        it.press(b"q")
        assert it.process.wait(30) == 0
    finally:
        it.close()
    assert terminal
