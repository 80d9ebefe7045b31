"""The example's docker-compose.yml, as far as it goes, without Compose: its services, and the shop's day in them."""

from __future__ import annotations

import re
import shlex
from contextlib import ExitStack
from pathlib import Path
from uuid import uuid4

import pytest
import yaml
from support import eventually

from celery_dlx_retry.testing.sandbox import free_ports

FILE = Path(__file__).parents[2] / "example_project" / "docker-compose.yml"
READY_SECONDS = 120
DAY_SECONDS = 300  # with what pip has to fetch
NANOSECONDS = 1_000_000_000


@pytest.fixture(scope="module")
def services():
    return yaml.safe_load(re.sub(r"\$\{FLAGS:-\}", "--down 8", FILE.read_text()))["services"]


@pytest.fixture(scope="module")
def up(docker_client, services):
    """What ``docker compose up`` does with this file: each service after those that it depends on are healthy."""
    with ExitStack() as stack:
        network = docker_client.networks.create(f"webshop-{uuid4().hex[:8]}")
        stack.callback(network.remove)
        started = {}
        for name in sorted(services, key=lambda it: len(services[it].get("depends_on", ()))):
            for other, when in services[name].get("depends_on", {}).items():
                assert when == {"condition": "service_healthy"}
                eventually(lambda one=started[other]: health(one) == "healthy", within=READY_SECONDS)
            started[name] = start(docker_client, network, name, services[name])
            stack.callback(started[name].remove, force=True, v=True)
        yield started


def test_the_shops_day_is_as_promised_in_containers(up):
    ended = up["shop"].wait(timeout=DAY_SECONDS)

    told = up["shop"].logs().decode()
    assert ended["StatusCode"] == 0, told
    assert "@rabbitmq:5672// (url)" in told, told
    assert "webhook down for 8 s" in told
    assert told.splitlines()[-1].startswith("10 orders paid, confirmed and sent; nothing lost")


def test_only_the_pages_of_rabbitmq_are_published_and_on_loopback_only(services, up):
    assert {name: service.get("ports", []) for name, service in services.items()} == {
        "rabbitmq": ["127.0.0.1:15672:15672"],
        "shop": [],
    }
    for container in up.values():
        container.reload()
    published = [one for container in up.values() for ones in container.ports.values() for one in ones or []]
    assert [one["HostIp"] for one in published] == ["127.0.0.1"]


def start(engine, network, name, service):
    """A service as a container; what this test does not know of is an error, as it would not be tested."""
    wanted = {**service}
    wanted.pop("depends_on", None)
    check = wanted.pop("healthcheck", None)
    container = engine.containers.create(
        image=wanted.pop("image"),
        command=shlex.split(wanted.pop("command", "")) or None,
        environment=wanted.pop("environment", {}),
        working_dir=wanted.pop("working_dir", None),
        volumes=dict(map(bind, wanted.pop("volumes", []))),
        ports=dict(map(loopback, wanted.pop("ports", []))),
        healthcheck=check
        and {
            "test": ["CMD-SHELL", check["test"]],
            "interval": int(check["interval"].removesuffix("s")) * NANOSECONDS,
            "retries": check["retries"],
        },
    )
    assert wanted == {}
    engine.networks.get("bridge").disconnect(container)
    network.connect(container, aliases=[name])
    container.start()
    return container


def bind(volume):
    """``..:/src:ro``, from where the file is."""
    source, target, mode = volume.split(":")
    return str((FILE.parent / source).resolve()), {"bind": target, "mode": mode}


def loopback(port):
    """``127.0.0.1:15672:15672``, but another one here: that one may be taken."""
    address, _, inner = port.split(":")
    return f"{inner}/tcp", (address, *free_ports(1))


def health(container):
    container.reload()
    return container.attrs["State"].get("Health", {}).get("Status")
