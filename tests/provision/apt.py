"""Debian's packages, for who is root."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from celery_dlx_retry.testing.sandbox import WayFailed, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

WAY = "apt-get"
SECONDS = 600


# Not in the temporary directory, where any user could put a link in its place: only root may write here.
LOCK = Path("/run/celery-dlx-retry-apt.lock")
LOCK_SECONDS = 2 * SECONDS  # apt_install() takes no longer


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Let one process install at a time, because apt-get refuses the second one; raise ``WayFailed`` if it takes long.

    Only root can install, so only root takes the lock, and no other user can hold it: the file is readable by root
    alone.
    """
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        yield
        return
    try:
        descriptor = os.open(LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as exc:
        raise WayFailed(way=WAY, problem=f"the lock {LOCK} cannot be opened ({exc.strerror})") from exc
    try:
        if not wait_until(lambda: _is_locked(descriptor), within=LOCK_SECONDS):
            raise WayFailed(way=WAY, problem=f"another process has held the lock {LOCK} for {LOCK_SECONDS:.0f} s")
        yield
    finally:
        os.close(descriptor)


def _is_locked(descriptor: int) -> bool:
    """Take the lock if it is free."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def apt_install(package: str, *, say: Callable[[str], None]) -> None:
    """Update the lists and install, without starting the package's service, or raise ``WayFailed``."""
    apt = shutil.which("apt-get")
    if apt is None:
        raise WayFailed(way=WAY, problem="not a Debian")
    if os.geteuid() != 0:
        raise WayFailed(way=WAY, problem="only root may install packages")
    say(f"apt-get: installing {package}")
    # RUNLEVEL=1: in single-user mode invoke-rc.d starts no service.
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    for command in (["update"], ["install", "-y", "--no-install-recommends", package]):
        try:
            done = subprocess.run(
                [apt, "-q", "-o", "DPkg::Lock::Timeout=120", *command],
                env=env,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired as exc:
            raise WayFailed(way=WAY, problem=f"{command[0]} took more than {SECONDS} s") from exc
        if done.returncode:
            said = (done.stderr or done.stdout).strip().splitlines() or [f"exit status {done.returncode}"]
            raise WayFailed(way=WAY, problem=f"{command[0]} failed ({said[-1]})")
