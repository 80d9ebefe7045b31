"""Our own fixtures' RabbitMQ, if an engine answers: on loopback, and gone afterwards, however that ends."""

from __future__ import annotations

import subprocess
import sys

import pytest
from support import eventually

from celery_dlx_retry.testing import provide
from celery_dlx_retry.testing.container import start_container
from celery_dlx_retry.testing.sandbox import WayFailed

# A process that provides itself with a RabbitMQ, says which container that is, and ends no sooner than this one.
OWNER = """
import sys
from celery_dlx_retry.testing import provide
with provide() as broker:
    print(broker._engine.id, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def nothing_asked_for(monkeypatch):
    for name in ("DLX_TEST_BROKER_URL", "DLX_TEST_RABBITMQ_ROOT"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def is_there(docker_client):
    return lambda container: container in {one.id for one in docker_client.containers.list(all=True)}


def test_an_engine_that_answers_provides_one_on_loopback_and_nothing_of_it_stays(docker_client, is_there):
    volumes = len(docker_client.volumes.list())

    with provide() as broker:
        broker._engine.reload()
        published = [one["HostIp"] for ones in broker._engine.ports.values() for one in ones or []]
        found = (broker.origin, broker.can_restart, broker.answers())

    assert found == ("docker", True, True)
    assert published == ["127.0.0.1", "127.0.0.1"]
    assert not is_there(broker._engine.id)
    assert len(docker_client.volumes.list()) == volumes


def test_no_container_outlives_its_owner_killed_with_9(is_there):
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", OWNER], stdin=pipe, stdout=pipe, text=True) as owner:
        container = owner.stdout.readline().strip()
        assert is_there(container)

        owner.kill()

    eventually(lambda: not is_there(container))


def test_an_image_that_cannot_be_had_is_one_line_for_the_next_way_to_be_tried():
    with pytest.raises(WayFailed) as failure:
        start_container("127.0.0.1:1/no/such:image")

    said = str(failure.value)
    assert said.startswith("Docker: the engine cannot start 127.0.0.1:1/no/such:image (")
    assert "\n" not in said
