"""Run as a script by ``guard``: once the owner is gone, remove what it had the engine make."""

import os
import sys
import time
from contextlib import suppress
from typing import Any

LABEL = "celery-dlx-retry"


def main(owner: int, mark: str) -> None:
    """Wait for the owner to go; a guard that is killed by its owner has nothing left to do."""
    while os.getppid() == owner:
        time.sleep(0.2)  # noqa: TID251 - getppid can only be polled, and this is a process of its own
    from docker.errors import APIError  # noqa: PLC0415 - slow, and hardly ever needed
    from testcontainers.core.docker_client import DockerClient  # noqa: PLC0415 - slow, and hardly ever needed

    engine = DockerClient().client
    for _ in range(50):  # the engine may just be making something, or removing it
        with suppress(APIError):
            remove(engine, mark)
        time.sleep(0.1)  # noqa: TID251 - see above


def remove(engine: Any, mark: str) -> bool:
    """Remove what is labelled with this mark, and say whether there was a container."""
    marked = {"label": f"{LABEL}={mark}"}
    containers = engine.containers.list(all=True, sparse=True, filters=marked)
    for container in containers:
        container.remove(force=True, v=True)
    for rest in (*engine.networks.list(filters=marked), *engine.volumes.list(filters=marked)):
        rest.remove()
    return bool(containers)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
