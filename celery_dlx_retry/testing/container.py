"""A RabbitMQ in a container, by testcontainers."""

from __future__ import annotations

import gc
import os
import secrets
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

from celery_dlx_retry.testing.broker import RESEND_SOON, START_SECONDS, CommandFailed, RabbitMQ
from celery_dlx_retry.testing.guard import LABEL, remove, start_guard
from celery_dlx_retry.testing.sandbox import LOOPBACK, WayFailed, free_ports, wait_until

WAY = "Docker"
PING_SECONDS = 3
MAKING_SECONDS = 5.0
AMQP_PORT = 5672
MANAGEMENT_PORT = 15672


def start_container(image: str) -> Container:
    """Start the image if an engine answers; anything else is a ``WayFailed``."""
    if Path("/.dockerenv").exists():
        # Inside a container testcontainers' reaper looks for itself at addresses that may not be reachable.
        os.environ.setdefault("TESTCONTAINERS_RYUK_DISABLED", "true")
    try:
        with warnings.catch_warnings():  # of what the libraries deprecate on import; nothing to us
            warnings.simplefilter("ignore")
            from docker.errors import DockerException  # noqa: PLC0415 - optional, and slow
            from testcontainers.core.docker_client import DockerClient  # noqa: PLC0415 - optional, and slow

            try:
                from testcontainers.community.rabbitmq import RabbitMqContainer  # noqa: PLC0415 - since 4.15
            except ModuleNotFoundError:
                from testcontainers.rabbitmq import RabbitMqContainer  # noqa: PLC0415 - before
    except ImportError as exc:
        raise WayFailed(way=WAY, problem=f"testcontainers[rabbitmq] is not installed ({exc})") from exc
    if not engine_answers(DockerClient, (DockerException, OSError)):
        raise WayFailed(way=WAY, problem="no engine answers")
    # Without these arguments it reads the environment, which may name another RabbitMQ.
    user, password = f"dlx{secrets.token_hex(3)}", secrets.token_hex(16)
    broker = Container(
        RabbitMqContainer(image, port=AMQP_PORT, username=user, password=password, vhost="/"),
        login=f"{user}:{password}",
    )
    try:
        broker.start()
    except (DockerException, OSError) as exc:
        with suppress(DockerException, OSError):  # an engine that has gone; the guard remains
            broker.close()
        problem = " ".join(str(exc).split())[:300]
        raise WayFailed(way=WAY, problem=f"the engine cannot start {image} ({problem})") from exc
    except BaseException:
        # After Ctrl-C the engine may still be making it (test_an_interrupt_while_the_engine_makes_it_leaves_nothing).
        wait_until(broker.remove, within=MAKING_SECONDS)
        broker.close()
        raise
    return broker


def new_mark() -> str:
    """Return a name for a container; it contains the pid of the process that makes it."""
    return f"{LABEL}-{os.getpid()}-{secrets.token_hex(4)}"


def engine_answers(client: Any, failures: tuple[type[Exception], ...]) -> bool:
    """Return whether the engine answers a ping within a few seconds."""
    with warnings.catch_warnings():
        # docker-py does not close the socket of a failed attempt, and Python warns when it collects the socket.
        warnings.simplefilter("ignore", ResourceWarning)
        try:
            client(timeout=PING_SECONDS).client.ping()
        except failures:
            return False
        finally:
            gc.collect()
    return True


class Container(RabbitMQ):
    """A container on loopback, on ports that we choose: those that the engine chooses change with a restart."""

    origin = "docker"
    can_restart = True

    def __init__(self, container: Any, *, login: str) -> None:
        amqp_port, management_port = free_ports(2)
        super().__init__(
            f"amqp://{login}@{LOOPBACK}:{amqp_port}//",
            management_url=f"http://{login}@{LOOPBACK}:{management_port}",
        )
        container.ports = {AMQP_PORT: (LOOPBACK, amqp_port), MANAGEMENT_PORT: (LOOPBACK, management_port)}
        container.with_env("RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS", RESEND_SOON)
        # In a container its probe looks for the port at other addresses; `start` asks on loopback.
        container.readiness_probe = lambda: None
        self._mark = new_mark()
        self._container = container.with_name(self._mark).with_kwargs(labels={LABEL: self._mark})
        self._engine: Any = None
        # The reaper of testcontainers is not enough: it is another image to pull, and often turned off, as above.
        self._guard = start_guard(self._mark)

    def start(self) -> None:
        """Create the container the first time."""
        if self._engine is None:
            self._engine = self._container.start().get_wrapped_container()
        else:
            self._engine.start()
        if not wait_until(self.answers, within=START_SECONDS):
            said = self._engine.logs(tail=6).decode(errors="replace")
            problem = f"did not answer within {START_SECONDS:.0f} s, last saying: {' '.join(said.split())[-600:]}"
            raise WayFailed(way=WAY, problem=problem)

    def stop(self) -> None:
        """SIGTERM to the node; the container stays."""
        self._engine.stop()

    def kill(self) -> None:
        """SIGKILL to the node; the container stays."""
        self._engine.kill()

    def pause(self) -> None:
        """Freeze the container's processes."""
        self._engine.pause()

    def resume(self) -> None:
        """The engine refuses to thaw what is not frozen."""
        self._engine.reload()
        if self._engine.status == "paused":
            self._engine.unpause()

    def ctl(self, *args: str) -> str:
        """Run in the container."""
        status, output = self._engine.exec_run(["rabbitmqctl", "--quiet", *args])
        said = str(output.decode())
        if status:
            raise CommandFailed(command=f"rabbitmqctl {' '.join(args)}", output=said.strip())
        return said

    def close(self) -> None:
        """Remove the container and its volume."""
        self.remove()
        self._container.get_docker_client().client.close()
        self._guard.kill()
        self._guard.wait()

    def remove(self) -> bool:
        """Return whether there was a container with its mark, which also finds one of an interrupted ``start``."""
        return remove(self._container.get_docker_client().client, self._mark)
