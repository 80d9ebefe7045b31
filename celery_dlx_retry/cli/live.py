"""The live screen of ``celery dlx watch``: two threads read the broker, and this one draws and takes keys."""

from __future__ import annotations

import contextlib
import os
import re
import select
import shutil
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from celery_dlx_retry.cli.errors import ended_by_exceptions
from celery_dlx_retry.cli.screen import Line, group_page, screen
from celery_dlx_retry.errors import BadBrokerURL, ConfigurationError, DLXError
from celery_dlx_retry.operations.monitor import Monitor
from celery_dlx_retry.operations.operation_errors import InvalidRequest
from celery_dlx_retry.operations.overview import Letters, Overview, OverviewReader, read_letters
from celery_dlx_retry.operations.session import open_session
from celery_dlx_retry.topology.broker_requirements import Server
from celery_dlx_retry.values.escaping import printable

try:
    import termios
    import tty
except ImportError:  # Windows
    termios = tty = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

#: Reading letters takes at most a tenth of the time.
_REST_PER_READ = 9
_LETTERS_SECONDS = 60.0
_DRAW_SECONDS = 0.5
# RabbitMQ 3 puts what was read of a quorum queue behind the rest, unless all of it was read.
_KEEPS_ORDER = (4,)

_OPEN, _CLOSE = "\x1b[?1049h\x1b[?25l\x1b[?7l", "\x1b[?7h\x1b[?25h\x1b[?1049l"
_KEY = re.compile(rb"\x1b[\[O][A-D]|[\s\S]")
_NAMES = {
    b"\x1b[A": "up", b"\x1bOA": "up", b"k": "up", b"\x1b[B": "down", b"\x1bOB": "down", b"j": "down",
    b"\r": "enter", b"\n": "enter", b"q": "quit", b"\x1b": "back", b"\x7f": "back", b"?": "help", b"l": "lanes",
}  # fmt: skip
_FOOTER = "q quits, arrows choose a group, Enter shows it, l lanes, ? help"
_HELP = (
    "q                quit",
    "up, down (k, j)  choose a group",
    "Enter            show the group; Enter, Esc or Backspace goes back",
    "l                show or hide the lanes",
    "?                this help",
    "",
    "ready      messages in the work queue that no worker holds",
    "running    messages that workers hold, the prefetched ones included",
    "waiting    tasks that wait for a retry, a countdown or an eta",
    "next due   when the next one of them goes back to work",
    "dead       dead letters; the next column: of the last ten minutes",
)


class Live:
    """Reads the overview every ``interval`` seconds, and the letters when their number has changed."""

    def __init__(
        self, app: Any, *, queues: Iterable[str], management_url: str | None, interval: float, quick: bool
    ) -> None:
        self._app, self._interval, self._quick = app, interval, quick
        self._where: dict[str, Any] = {"queues": tuple(queues), "management_url": management_url}
        self._overview: Overview | None = None
        self._letters: Letters | None = None
        #: Why the broker cannot be read just now.
        self.problem = ""
        self._fatal: DLXError | None = None
        self._changed, self._stop, self._cancel = threading.Event(), threading.Event(), threading.Event()
        self.is_reading = threading.Event()
        self._may_cancel = False
        self._threads = [threading.Thread(target=self._watch, daemon=True)]
        if not quick:
            self._threads.append(threading.Thread(target=self._read, daemon=True))

    def start(self) -> None:
        """Start both threads."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End both threads; letters that are being read go back in order."""
        self._stop.set()
        if self._may_cancel:
            self._cancel.set()
        for thread in self._threads:
            thread.join()

    @property
    def overview(self) -> Overview | None:
        """Return the last reading; raise the error that ends the command."""
        if self._fatal is not None:
            raise self._fatal
        return self._overview

    def next(self) -> tuple[Overview | None, str]:
        """Wait for the next reading and return it, with the problem if there is one."""
        self._changed.wait()
        self._changed.clear()
        return self.overview, self.problem

    def _watch(self) -> None:
        while not self._stop.is_set():
            try:
                with open_session(self._app, **self._where) as session:
                    version = Server.of(session.connection.connection.server_properties).numbers
                    self._may_cancel = version >= _KEEPS_ORDER
                    reader = OverviewReader(session)
                    while not self._stop.is_set():
                        self._overview = reader.read(self._letters, keep_depths=self.is_reading.is_set())
                        self.problem = ""
                        self._changed.set()
                        self._stop.wait(self._interval)
            except (ConfigurationError, BadBrokerURL, InvalidRequest) as problem:  # noqa: PERF203 - the loop goes on
                self._fatal = problem  # trying again does not help
                self._changed.set()
                return
            except DLXError as problem:
                self.problem = str(problem)
                self._changed.set()
                self._stop.wait(self._interval)

    def _read(self) -> None:
        count, read_at = -1, 0.0
        while not self._stop.is_set():
            found = self._overview
            now_count = found.dead + found.orphans if found else -1
            if found and (now_count != count or (count and time.monotonic() > read_at + _LETTERS_SECONDS)):
                started = time.monotonic()
                self.is_reading.set()
                try:
                    letters = read_letters(self._app, monitor=Monitor(cancel=self._cancel), **self._where)
                    if not self._cancel.is_set():
                        self._letters, count = letters, now_count
                except DLXError:  # the other thread says so
                    pass
                finally:
                    self.is_reading.clear()
                read_at = time.monotonic()
                self._stop.wait(_REST_PER_READ * (read_at - started))
            self._stop.wait(min(self._interval, 1.0))


def is_interactive() -> bool:
    """Return whether there is a terminal that can be drawn on, with keys."""
    return termios is not None and sys.stdin.isatty() and sys.stdout.isatty()


def show_live(live: Live, *, lanes: bool) -> None:
    """Draw the overview in the whole terminal until the user quits."""
    view = _View(lanes=lanes)
    drawn: tuple[object, ...] = ()
    with ended_by_exceptions(), _raw_terminal() as keyboard:
        while not view.is_done:
            size = shutil.get_terminal_size()
            lines = view.lines(live, width=size.columns, height=size.lines)
            if (frame := (size, *map(str, lines))) != drawn:
                sys.stdout.write("\x1b[H" + "\r\n".join(f"{line}\x1b[K" for line in lines) + "\x1b[J")
                sys.stdout.flush()
                drawn = frame
            if select.select([keyboard], [], [], _DRAW_SECONDS)[0]:
                for key in _KEY.findall(os.read(keyboard, 64) or b"q"):  # no input: the terminal is closed
                    view.press(_NAMES.get(key, ""), live)


class _View:
    """What the user has chosen to see."""

    def __init__(self, *, lanes: bool) -> None:
        self._lanes, self._page, self._group = lanes, "", ""
        self.is_done = False

    def press(self, key: str, live: Live) -> None:
        """Do what a key says."""
        groups = [it.group for it in (live.overview.groups if live.overview else None) or ()]
        place = groups.index(self._group) if self._group in groups else 0
        if key == "quit":
            self.is_done = True
        elif self._page:
            self._page = "" if key in {"enter", "back", "help"} else self._page
        elif key == "help" or (key == "enter" and groups):
            self._page = key
            self._group = groups[place] if groups else ""
        elif key in {"up", "down"} and groups:
            self._group = groups[max(0, min(len(groups) - 1, place + (1 if key == "down" else -1)))]
        elif key == "lanes":
            self._lanes = not self._lanes

    def lines(self, live: Live, *, width: int, height: int) -> list[Line]:
        """Return the lines of the terminal."""
        overview = live.overview
        if self._page == "help":
            return [Line(text=it) for it in _HELP][:height]
        if overview is None:
            return [
                Line(text=printable(live.problem) or "Reading the queues …", colour="red" if live.problem else None)
            ]
        groups = overview.groups or ()
        names = [it.group for it in groups]
        if self._page == "enter" and self._group in names:
            return group_page(groups[names.index(self._group)], width=width, now_ms=overview.read_at_ms)[:height]
        selected = names.index(self._group) if self._group in names else 0 if names else None
        problem = [Line(text=printable(live.problem)[:width], colour="red")] if live.problem else []
        note = "Reading the dead letters …" if live.is_reading.is_set() and overview.groups is None else ""
        room = height - 1 - len(problem)
        shown = screen(overview, width=width, height=room, lanes=self._lanes, selected=selected, note=note)
        blank = [Line()] * (room - len(shown))
        return [*problem, *shown[:room], *blank, Line(text=_FOOTER[:width])]


@contextlib.contextmanager
def _raw_terminal() -> Iterator[int]:
    """Yield the keyboard; each key comes at once, and the terminal is as it was afterwards."""
    keyboard = sys.stdin.fileno()
    before = termios.tcgetattr(keyboard)
    try:
        tty.setcbreak(keyboard)
        sys.stdout.write(_OPEN)
        yield keyboard
    finally:
        sys.stdout.write(_CLOSE)
        sys.stdout.flush()
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)
