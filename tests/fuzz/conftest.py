"""The seed of a run, and a virtual host with a user of its own for what is published."""

from __future__ import annotations

import os
import secrets
from contextlib import closing
from types import SimpleNamespace
from urllib.parse import quote, urlsplit

import pytest

from tests.fuzz.house import House
from tests.fuzz.inputs import SEED, Fuzz
from tests.fuzz.values import SECRET
from tests.management import Management

FUZZ = Fuzz.of_environment()
os.environ[SEED] = FUZZ.seed  # the processes of pytest-xdist must not draw another one


def pytest_report_header() -> str:
    return str(FUZZ)


@pytest.fixture(scope="module")
def fuzz():
    """The run; a failure of one module is none of another."""
    FUZZ.failures.clear()
    return FUZZ


@pytest.fixture(scope="module")
def vhost(broker, management):
    """A virtual host with a user whose password is the secret. Every message in it was put there by the module."""
    if management is None:
        pytest.skip("virtual hosts are made over the HTTP API")
    name = f"fuzz-{secrets.token_hex(4)}"
    management.call("PUT", f"/vhosts/{name}", {})
    management.call("PUT", f"/users/{name}", {"password": SECRET, "tags": "administrator"})
    management.call("PUT", f"/permissions/{name}/{name}", {"configure": ".*", "write": ".*", "read": ".*"})
    login = f"{quote(name)}:{quote(SECRET)}"
    amqp, http = (urlsplit(url).netloc.rpartition("@")[2] for url in (broker.url, broker.management_url))
    it = SimpleNamespace(
        name=name, url=f"amqp://{login}@{amqp}/{name}", management_url=f"http://{login}@{http}", password=SECRET
    )
    it.api = Management(it)
    yield it
    management.call("DELETE", f"/vhosts/{name}")
    management.call("DELETE", f"/users/{name}")


@pytest.fixture(scope="module")
def house(vhost, redis_url):
    with closing(House(vhost, redis_url)) as it:
        yield it
