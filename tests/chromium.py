"""A headless Chromium that makes a picture of a page."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from typing import TYPE_CHECKING

from celery_dlx_retry.testing.sandbox import WayFailed
from tests.provision.apt import apt_install, one_at_a_time

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PROGRAM = "chromium"
SECONDS = 120
# Without these it asks hosts of its maker for updates, and root may not start it.
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage"),
)


def find_chromium(say: Callable[[str], None]) -> str:
    """Return the path of ``chromium``. Debian's package is installed if root may."""
    with one_at_a_time():
        if shutil.which(PROGRAM) is None:
            apt_install(PROGRAM, say=say)
    found = shutil.which(PROGRAM)
    if found is None:
        raise WayFailed(way=PROGRAM, problem="not on PATH")
    return found


def photograph(program: str, url: str, picture: Path, *, width: int = 1280, height: int = 720) -> None:
    """Write a PNG of a page, when its scripts have had some seconds."""
    with tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True) as profile:
        subprocess.run(
            [
                *(program, *FLAGS, f"--user-data-dir={profile}", f"--window-size={width},{height}"),
                *(f"--screenshot={picture}", "--virtual-time-budget=15000", url),
            ],
            check=True,
            capture_output=True,
            timeout=SECONDS,
        )
