"""Debian's packages, for who is root."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from celery_dlx_retry.testing.sandbox import WayFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

WAY = "apt-get"
SECONDS = 600


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Tests run in several processes, and apt-get in one: of two it refuses the second."""
    with (Path(tempfile.gettempdir()) / "celery-dlx-retry-apt.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


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
            done = subprocess.run(  # noqa: S603 - a package name of ours
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
