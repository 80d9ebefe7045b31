"""Our own fixtures' RabbitMQ, if an engine answers: on loopback, and gone afterwards, however that ends."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from docker.api.client import APIClient
from support import eventually

from celery_dlx_retry.testing.container import start_container
from celery_dlx_retry.testing.guard import LABEL
from celery_dlx_retry.testing.sandbox import WayFailed
from tests.provision import provide

# A process that provides itself with a RabbitMQ, says which container that is, and ends no sooner than this one.
OWNER = """
import sys
from tests.provision import provide
with provide() as broker:
    print(broker._engine.id, flush=True)
    sys.stdin.read()
"""
THIS_SUITE = [
    *("-m", "pytest", "--quiet", "-p", "no:cacheprovider", "--rootdir", str(Path(__file__).parents[2])),
    f"{Path(__file__).parent}/test_containers.py::test_broker_and_backend_are_published_on_loopback_only",
]


@pytest.fixture(autouse=True)
def nothing_asked_for(monkeypatch):
    for name in ("DLX_TEST_BROKER_URL", "DLX_TEST_RABBITMQ_ROOT"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def is_there(docker_client):
    return lambda container: container in {one.id for one in docker_client.containers.list(all=True)}


@pytest.fixture
def made_by(docker_client):
    """Containers, networks and volumes of the process with this pid, as the engine describes them."""
    marked = {"label": LABEL}

    def made_by(pid):
        containers = docker_client.containers.list(all=True, sparse=True, filters=marked)
        rest = [*docker_client.networks.list(filters=marked), *docker_client.volumes.list(filters=marked)]
        made = [one.attrs for one in [*containers, *rest]]
        return [one for one in made if one["Labels"][LABEL].startswith(f"{LABEL}-{pid}-")]

    return made_by


def test_an_engine_that_answers_provides_one_on_loopback_and_nothing_of_it_stays(docker_client, is_there):
    with provide() as broker:
        broker._engine.reload()
        published = [one["HostIp"] for ones in broker._engine.ports.values() for one in ones or []]
        volumes = {mount["Name"] for mount in broker._engine.attrs["Mounts"]}
        found = (broker.origin, broker.can_restart, broker.answers())

    assert found == ("docker", True, True)
    assert published == ["127.0.0.1", "127.0.0.1"]
    assert not is_there(broker._engine.id)
    assert volumes.isdisjoint(one.name for one in docker_client.volumes.list())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("command", [["-c", OWNER], THIS_SUITE], ids=["fixture", "suite"])
def test_nothing_outlives_an_owner_that_is_ended_while_it_waits_for_its_container(command, number, made_by):
    quiet = subprocess.DEVNULL
    with subprocess.Popen([sys.executable, *command], stdin=subprocess.PIPE, stdout=quiet, stderr=quiet) as owner:
        eventually(lambda: any(one.get("State") == "running" for one in made_by(owner.pid)), within=60)

        owner.send_signal(number)
        assert owner.wait(60)

    eventually(lambda: not made_by(owner.pid))


def test_an_interrupt_while_the_engine_makes_it_leaves_nothing(monkeypatch, is_there):
    make = APIClient.create_container
    made = []

    def interrupted(*args, **kwargs):
        threading.Timer(0.5, lambda: made.append(make(*args, **kwargs))).start()
        raise KeyboardInterrupt

    monkeypatch.setattr(APIClient, "create_container", interrupted)

    with pytest.raises(KeyboardInterrupt):
        provide()

    (container,) = eventually(lambda: made)
    assert not is_there(container["Id"])


def test_an_image_that_cannot_be_had_is_one_line_for_the_next_way_to_be_tried():
    with pytest.raises(WayFailed) as failure:
        start_container("127.0.0.1:1/no/such:image")

    said = str(failure.value)
    assert said.startswith("Docker: the engine cannot start 127.0.0.1:1/no/such:image (")
    assert "\n" not in said
