"""A process that removes what its owner left, even after kill -9: a sandbox, or containers with a mark.

``start_guard`` runs this file as a script.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

LABEL = "celery-dlx-retry"


def start_guard(what: str, *, flags: tuple[str, ...] = ("-I",)) -> subprocess.Popen[bytes]:
    """Guard the folder of a sandbox, or what is labelled with this mark. Kill the guard when you have removed it."""
    return subprocess.Popen(  # noqa: S603 - our own script
        [sys.executable, *flags, __file__, str(os.getpid()), what],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def main(owner: int, what: str) -> None:
    """Wait until the owner is gone, then remove."""
    while os.getppid() == owner:
        time.sleep(0.2)  # noqa: TID251 - a process can only poll its getppid()
    remove_rest = _end_sandbox if Path(what).is_absolute() else _end_containers
    for _ in range(50):  # a dying process may still create a file, and the engine may be making a container
        if remove_rest(what):
            return
        time.sleep(0.1)  # noqa: TID251 - see above


def _end_sandbox(path: str) -> bool:
    folder = Path(path)
    for pid_file in folder.glob("*.pid"):
        with suppress(ProcessLookupError, ValueError):
            os.killpg(int(pid_file.read_text()), signal.SIGKILL)
    shutil.rmtree(folder, ignore_errors=True)
    return not folder.exists()


def _end_containers(mark: str) -> bool:
    from docker.errors import APIError  # noqa: PLC0415 - slow, and hardly ever needed
    from testcontainers.core.docker_client import DockerClient  # noqa: PLC0415 - slow, and hardly ever needed

    with suppress(APIError):
        remove(DockerClient().client, mark)
    return False  # the engine may make another one


def remove(engine: Any, mark: str) -> bool:
    """Remove what is labelled with this mark, and return whether there was a container."""
    marked = {"label": f"{LABEL}={mark}"}
    containers = engine.containers.list(all=True, sparse=True, filters=marked)
    for container in containers:
        container.remove(force=True, v=True)
    for rest in (*engine.networks.list(filters=marked), *engine.volumes.list(filters=marked)):
        rest.remove()
    return bool(containers)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
