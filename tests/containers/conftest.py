"""RabbitMQ, Redis and a worker with this checkout, each in a container, by pytest-celery."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import docker
import pytest
from containers import tasks
from kombu.connection import Connection
from pytest_celery import *  # noqa: F403 - its fixtures, for this folder; as a plugin they were for all
from pytest_celery import CeleryWorkerContainer, RabbitMQContainer, RabbitMQTestBroker, RedisContainer, RedisTestBackend
from pytest_docker_tools import build, container, fxtr, network, volume

from celery_dlx_retry.broker.counts import depth
from celery_dlx_retry.broker.dead_letters import browse
from celery_dlx_retry.settings import Settings
from celery_dlx_retry.testing.container import new_mark
from celery_dlx_retry.testing.guard import LABEL, start_guard
from celery_dlx_retry.testing.rabbitmq import DEFAULT_IMAGE, IMAGE
from celery_dlx_retry.testing.sandbox import LOOPBACK, free_ports
from celery_dlx_retry.topology.names import Names, WorkQueue

if TYPE_CHECKING:
    from celery.result import AsyncResult

    from celery_dlx_retry.deadletters.letter import DeadMessage

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]


MARK = new_mark()
GUARD = pytest.StashKey()


def pytest_configure(config) -> None:
    """Nothing stays, whatever ends us and whenever: between its making and its fixture too."""
    config.stash[GUARD] = start_guard(MARK)


@pytest.fixture(scope="session")
def docker_client():
    """By which everything here is made, and marked; pytest-docker-tools' own marks nothing."""
    client = docker.from_env()
    for make in ("create_container", "create_network", "create_volume"):
        setattr(client.api, make, partial(marked, getattr(client.api, make)))
    return client


def marked(make, *args, labels=None, **kwargs):
    return make(*args, labels={**(labels or {}), LABEL: MARK}, **kwargs)


class Published:
    """On loopback only, and on a port of our choice: one of the engine's choice changes with a restart."""

    def _wait_port(self, port: str) -> int:
        """Not pytest-celery's, which in a container, as many a CI is, looks for the port at another address."""
        return int(self.attrs["HostConfig"]["PortBindings"][port][0]["HostPort"])


class Broker(Published, RabbitMQContainer):
    pass


class Backend(Published, RedisContainer):
    pass


@pytest.fixture(scope="session")
def broker_ports():
    return {"5672/tcp": (LOOPBACK, *free_ports(1))}


@pytest.fixture(scope="session")
def backend_ports():
    return {"6379/tcp": (LOOPBACK, *free_ports(1))}


@pytest.fixture(scope="session")
def worker_folder(tmp_path_factory):
    """What the worker's image is built from."""
    folder = tmp_path_factory.mktemp("worker")
    wheel = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(ROOT)]
    subprocess.run(wheel, check=True)
    shutil.copy(FOLDER / "Dockerfile", folder)
    return str(folder)


# Broker and backend are there for all tests; a worker is new in each.
default_pytest_celery_network = network(scope="session")
broker_data = volume(scope="session")  # an image's own volume would stay behind
default_rabbitmq_broker = container(
    scope="session",
    image=os.environ.get(IMAGE) or DEFAULT_IMAGE,
    ports=fxtr("broker_ports"),
    network="{default_pytest_celery_network.name}",
    volumes={"{broker_data.name}": {"bind": "/var/lib/rabbitmq", "mode": "rw"}},
    wrapper_class=Broker,
    timeout=120,
)
default_redis_backend = container(
    scope="session",
    image=os.environ.get("DLX_TEST_REDIS_IMAGE") or "redis:latest",
    ports=fxtr("backend_ports"),
    network="{default_pytest_celery_network.name}",
    tmpfs={"/data": ""},
    command=Backend.command(),
    wrapper_class=Backend,
    timeout=60,
)
celery_base_worker_image = build(
    path="{worker_folder}",
    tag="celery-dlx-retry/worker:test",
    forcerm=True,
    buildargs={
        "PYTHON_IMAGE": os.environ.get("DLX_TEST_PYTHON_IMAGE") or "python:3.13-slim",
        "CELERY": version("celery"),
    },
)


@pytest.fixture
def celery_broker(default_rabbitmq_broker):
    return RabbitMQTestBroker(default_rabbitmq_broker)


@pytest.fixture
def celery_backend(default_redis_backend):
    return RedisTestBackend(default_redis_backend)


@pytest.fixture
def celery_broker_cluster_config(celery_broker_cluster):
    """Not pytest-celery's, with which a worker whose broker failed to start quietly works on memory://."""
    return celery_broker_cluster.config()


@pytest.fixture
def default_worker_command():
    return CeleryWorkerContainer.command("--concurrency=4", "--without-mingle", "--without-gossip")


@pytest.fixture
def default_worker_tasks():
    return {tasks}


class Shop:
    """What can be seen of it from outside, as a web process and an operator would."""

    names = Names.of(Settings())

    def __init__(self, setup) -> None:
        self.broker, self.backend, self.worker = setup.broker, setup.backend, setup.worker
        self._app = setup.app
        self._url = self._app.conf.broker_url

    def send(self, task: str, *args: object) -> AsyncResult:
        return self._app.send_task(task, args)

    def runs(self, result: AsyncResult) -> list[float]:
        """When each run of it began."""
        with self.backend.container.client as client:
            return [float(at) for at in client.lrange(f"runs of {result.id}", 0, -1)]

    def waiting(self) -> int:
        """How many are in the lane of WAIT_SECONDS."""
        with Connection(self._url) as connection:
            return depth(connection, self.names.lane(WorkQueue(name="celery"), tasks.WAIT_SECONDS * 1000)) or 0

    def dead(self, result: AsyncResult) -> list[DeadMessage]:
        with Connection(self._url) as connection:
            letters = list(browse(connection, self.names.dead_letters("celery")))
        return [letter for letter in letters if letter.record.task_id == result.id]

    def close(self) -> None:
        self._app.backend.result_consumer.stop()
        self._app.close()


@pytest.fixture
def shop(celery_setup):
    it = Shop(celery_setup)
    yield it
    it.close()
