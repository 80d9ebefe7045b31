"""A temporary directory with processes; both are removed when the process that made them ends, even after kill -9."""

from __future__ import annotations

import os
import pwd
import re
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from celery_dlx_retry.errors import DLXError
from celery_dlx_retry.testing.guard import start_guard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

LOOPBACK = "127.0.0.1"
LOG_HEAD = re.compile(r"^\S+ \S+ \[\w+\] <[\d.]+>")  # of a line in RabbitMQ's log: date, time, level, process
SAID_LINES = 5
SAID_CHARACTERS = 600


class WayFailed(DLXError):
    """``way``, ``problem``: one way to a server failed, the next may do."""

    sentence = "{way}: {problem}"


class Account(NamedTuple):
    """An unprivileged user of this machine."""

    uid: int
    gid: int

    def own(self, path: Path) -> None:
        """Make it the owner of a file, or of a folder with its content."""
        for each in (path, *path.rglob("*")):
            os.chown(each, self.uid, self.gid, follow_symlinks=False)

    @property
    def popen(self) -> dict[str, Any]:
        """Options for subprocess that run a command as this user."""
        return {"user": self.uid, "group": self.gid, "extra_groups": []}


def unprivileged(*names: str, reaching: Iterable[Path]) -> Account | None:
    """Return the first of these users that exists, else an unprivileged one; None unless root runs this process.

    A server of root could do anything on this machine. Return None if the user could not enter these folders.
    """
    if os.geteuid() != 0:
        return None
    if not all(folder.stat().st_mode & 0o001 for path in reaching for folder in (path, *path.parents)):
        return None
    for name in (*names, "nobody"):
        with suppress(KeyError):
            found = pwd.getpwnam(name)
            return Account(found.pw_uid, found.pw_gid)
    return None


class Sandbox:
    """A directory and its processes. Each has a name and leads a process group, so that a kill ends its helpers."""

    def __init__(self, name: str) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=f"{name}-"))
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._paused: set[str] = set()
        # Not PR_SET_PDEATHSIG: it follows the thread that forked, and a change of credentials forgets it
        # (test_nodes_run_side_by_side_and_none_outlives_its_owner_killed_with_9).
        self._guard = start_guard(str(self.path), flags=("-I", "-S"))

    def spawn(
        self, name: str, command: Sequence[str], env: Mapping[str, str], *, account: Account | None = None
    ) -> None:
        """Start a process, for this user if one is given; its output goes to the file ``NAME.out``."""
        with (self.path / f"{name}.out").open("ab") as out:
            process = subprocess.Popen(  # noqa: S603 - the caller's command
                command,
                env=env,
                cwd=self.path,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                **(account.popen if account else {}),
            )
        self._pid_file(name).write_text(str(process.pid))
        self._processes[name] = process

    def pid(self, name: str) -> int | None:
        """Return its pid; None if it does not run. To ``kill(pid, 0)`` a zombie runs."""
        process = self._processes.get(name)
        return process.pid if process and process.poll() is None else None

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal to the process, and not to its helpers; nothing happens if it does not run."""
        if pid := self.pid(name):
            os.kill(pid, number)

    def pause(self, name: str) -> None:
        """Stop the process, and return when all its threads have stopped: under load that takes a while."""
        pid = self.pid(name)
        if pid and name not in self._paused:
            self._paused.add(name)
            os.kill(pid, signal.SIGSTOP)
            os.waitpid(pid, os.WUNTRACED)

    def resume(self, name: str) -> None:
        """Continue the process after ``pause``."""
        self.signal(name, signal.SIGCONT)
        self._paused.discard(name)

    def terminate(self, name: str, *, within: float) -> None:
        """Ask the process to end, and kill it if it does not."""
        self.signal(name, signal.SIGTERM)
        self.resume(name)  # a paused process would not see the request
        with suppress(KeyError, subprocess.TimeoutExpired):
            self._processes[name].wait(within)
        self.kill(name)

    def kill(self, name: str) -> None:
        """Send SIGKILL to the process and its helpers; return when it has ended."""
        self._paused.discard(name)
        process = self._processes.pop(name, None)
        if process is None:
            return
        with suppress(ProcessLookupError, PermissionError):  # an empty group; macOS says the latter of a zombie
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        self._pid_file(name).unlink()

    def said(self, *files: str) -> str:
        """Return in one line what these files say about a failure: the first errors, or else the last lines."""
        present = [self.path / file for file in files if (self.path / file).exists()]
        lines = [line for file in present for line in file.read_text(errors="replace").splitlines() if line.strip()]
        errors = [line for line in lines if "error" in line.lower()]
        telling = [LOG_HEAD.sub("", line).strip() for line in errors[:SAID_LINES] or lines[-SAID_LINES:]]
        return " | ".join(telling)[:SAID_CHARACTERS] or "it said nothing"

    def close(self) -> None:
        """Kill everything and remove the directory."""
        for name in list(self._processes):
            self.kill(name)
        self._guard.kill()
        self._guard.wait()
        shutil.rmtree(self.path, ignore_errors=True)

    def _pid_file(self, name: str) -> Path:
        return self.path / f"{name}.pid"


def free_ports(count: int) -> range:
    """Return consecutive ports without a listener.

    The kernel takes the ports of outgoing connections from a higher range, so none of them takes the port of a node
    that is down for a moment. ``secrets`` chooses: with ``random``, sessions with the same seed choose the same ports.
    """
    while True:
        first = 20_000 + secrets.randbelow(12_000 - count)
        ports = range(first, first + count)
        if all(map(is_free, ports)):
            return ports


def is_free(port: int) -> bool:
    """Return whether a server could listen there."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def listens(port: int) -> bool:
    """Return whether a server listens there."""
    try:
        socket.create_connection((LOOPBACK, port), timeout=1).close()
    except OSError:
        return False
    return True


def wait_until(check: Callable[[], bool], *, within: float) -> bool:
    """Poll, and return whether the check became true in time."""
    deadline = time.monotonic() + within
    while not check():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)  # noqa: TID251 - a server that starts can only be polled
    return True
