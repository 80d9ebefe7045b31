"""A temporary directory and the processes that live in it; all of it goes when its owner goes, however that ends."""

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
TOLD_LINES = 5
TOLD_CHARACTERS = 600


class WayFailed(DLXError):
    """``way``, ``problem``: one way to a server failed, the next may do."""

    sentence = "{way}: {problem}"


class Account(NamedTuple):
    """A user of this machine who may do little."""

    uid: int
    gid: int

    def own(self, path: Path) -> None:
        """Give it a file, or a folder with everything in it."""
        for each in (path, *path.rglob("*")):
            os.chown(each, self.uid, self.gid, follow_symlinks=False)

    @property
    def popen(self) -> dict[str, Any]:
        """Options for subprocess that run a command as this user."""
        return {"user": self.uid, "group": self.gid, "extra_groups": []}


def unprivileged(*names: str, reaching: Iterable[Path]) -> Account | None:
    """The first of these users, then nobody, who can enter all these folders; None unless we are root.

    A server that root starts as root could do anything on this machine.
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
    """Processes are known by a name; each leads a process group, so that a signal to it reaches its helpers."""

    def __init__(self, name: str) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=f"{name}-"))  # which only its owner can enter
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._paused: set[str] = set()
        # Not PR_SET_PDEATHSIG: it follows the thread that forked, and a change of credentials forgets it
        # (test_nodes_run_side_by_side_and_none_outlives_its_owner_killed_with_9).
        self._guard = start_guard(str(self.path), flags=("-I", "-S"))

    def spawn(
        self, name: str, command: Sequence[str], env: Mapping[str, str], *, account: Account | None = None
    ) -> None:
        """Start a process, as this user if there is one; what it says goes to a file of its name."""
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
        """None unless it runs; unlike ``kill(pid, 0)`` this is not fooled by a zombie."""
        process = self._processes.get(name)
        return process.pid if process and process.poll() is None else None

    def signal(self, name: str, number: signal.Signals) -> None:
        """Reach the process alone, if it runs."""
        if pid := self.pid(name):
            os.kill(pid, number)

    def pause(self, name: str) -> None:
        """Stop the process and return once all its threads stand still: under load that takes a while."""
        pid = self.pid(name)
        if pid and name not in self._paused:
            self._paused.add(name)
            os.kill(pid, signal.SIGSTOP)
            os.waitpid(pid, os.WUNTRACED)

    def resume(self, name: str) -> None:
        """Go on after ``pause``."""
        self.signal(name, signal.SIGCONT)
        self._paused.discard(name)

    def terminate(self, name: str, *, within: float) -> None:
        """Let it end by itself, and kill it if it does not."""
        self.signal(name, signal.SIGTERM)
        self.resume(name)  # a paused process would not see the request
        with suppress(KeyError, subprocess.TimeoutExpired):
            self._processes[name].wait(within)
        self.kill(name)

    def kill(self, name: str) -> None:
        """SIGKILL to the process and its helpers; returns when it is gone."""
        self._paused.discard(name)
        process = self._processes.pop(name, None)
        if process is None:
            return
        with suppress(ProcessLookupError, PermissionError):  # an empty group; macOS says the latter of a zombie
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        self._pid_file(name).unlink()

    def said(self, *files: str) -> str:
        """Return in one line what these files tell about a failure: the first errors, or else the end."""
        present = [self.path / file for file in files if (self.path / file).exists()]
        lines = [line for file in present for line in file.read_text(errors="replace").splitlines() if line.strip()]
        errors = [line for line in lines if "error" in line.lower()]
        telling = [LOG_HEAD.sub("", line).strip() for line in errors[:TOLD_LINES] or lines[-TOLD_LINES:]]
        return " | ".join(telling)[:TOLD_CHARACTERS] or "it said nothing"

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
    """Consecutive ports on which nobody listens.

    They lie below the range from which the kernel takes the ports of outgoing connections, so that none of those
    takes the port of a node that is down for a moment. Chosen by ``secrets``: sessions with the same random seed
    would otherwise choose the same ports.
    """
    while True:
        first = 20_000 + secrets.randbelow(12_000 - count)
        ports = range(first, first + count)
        if all(map(is_free, ports)):
            return ports


def is_free(port: int) -> bool:
    """Say whether a server could listen there."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def listens(port: int) -> bool:
    """Say whether a server listens there."""
    try:
        socket.create_connection((LOOPBACK, port), timeout=1).close()
    except OSError:
        return False
    return True


def wait_until(check: Callable[[], bool], *, within: float) -> bool:
    """Poll, and say whether it came true in time."""
    deadline = time.monotonic() + within
    while not check():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)  # noqa: TID251 - a server that starts can only be polled
    return True
