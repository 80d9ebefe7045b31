"""Run as a script by ``Container``: once the owner is gone, remove its container."""

import os
import sys
import time


def main(owner: int, name: str) -> None:
    """Wait for the owner to go; a guard that is killed by its owner has nothing left to do."""
    while os.getppid() == owner:
        time.sleep(0.2)  # noqa: TID251 - getppid can only be polled, and this is a process of its own
    from docker.errors import NotFound  # noqa: PLC0415 - slow, and hardly ever needed
    from testcontainers.core.docker_client import DockerClient  # noqa: PLC0415 - slow, and hardly ever needed

    for _ in range(50):  # the engine may just be making it
        try:
            DockerClient().client.containers.get(name).remove(force=True, v=True)
        except NotFound:  # noqa: PERF203 - the failure is why there is a loop
            time.sleep(0.1)  # noqa: TID251 - see above
        else:
            return


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
