"""Run as a script by ``Sandbox``: once the owner is gone, kill what runs in its sandbox and remove that."""

import os
import shutil
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path


def main(owner: int, sandbox: Path) -> None:
    """Wait for the owner to go; a guard that is killed by its owner has nothing left to do."""
    while os.getppid() == owner:
        time.sleep(0.2)  # noqa: TID251 - getppid can only be polled, and this is a process of its own
    for pid_file in sandbox.glob("*.pid"):
        with suppress(ProcessLookupError, ValueError):
            os.killpg(int(pid_file.read_text()), signal.SIGKILL)
    for _ in range(50):  # a process that is just dying may still create a file
        shutil.rmtree(sandbox, ignore_errors=True)
        if not sandbox.exists():
            return
        time.sleep(0.1)  # noqa: TID251 - see above


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
