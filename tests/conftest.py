"""A broker per session, a namespace per test."""

from __future__ import annotations

import os
import secrets
import signal
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest
import rabbits
import record
from support import as_user, eventually

from celery_dlx_retry.errors import NoBroker
from tests.management import Management
from tests.provision import NoRedis, provide, provide_redis

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from celery_dlx_retry.testing import RabbitMQ


def pytest_configure(config) -> None:
    """Hear Ctrl-C, as tests send it to what they start: a shell's background jobs, and their children, ignore it."""
    if version := os.environ.get(rabbits.VERSION):
        rabbits.ask_for(version)
    if plugin := record.asked_for(config):
        config.pluginmanager.register(plugin, "record")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def say(pytestconfig) -> Callable[[str], None]:
    """Write a line to the terminal, past pytest's capture."""
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")

    def say(line: str) -> None:
        with capture.global_and_fixture_disabled():
            pytestconfig.get_terminal_writer().line(f"\n{line}")

    return say


@pytest.fixture(scope="session")
def rabbitmq_version() -> str:
    """The one that was asked for; empty if any will do."""
    return os.environ.get(rabbits.VERSION, "")


@pytest.fixture(scope="session")
def broker(say, pytestconfig, rabbitmq_version) -> Iterator[RabbitMQ]:
    """A RabbitMQ. Only tests that ask ``broker.can_restart`` may stop, kill or pause it."""
    with ExitStack() as stack:
        try:
            provided = stack.enter_context(provide(say=say))
        except NoBroker as exc:
            pytest.fail(str(exc), pytrace=False)
        if not rabbits.is_of(rabbitmq_version, provided.version):
            pytest.fail(f"RabbitMQ {rabbitmq_version} was asked for, and {provided} is there", pytrace=False)
        if recorder := pytestconfig.pluginmanager.get_plugin("record"):
            recorder.rabbitmq.add(provided.version)
        yield provided


@pytest.fixture(scope="session")
def redis_url(say) -> Iterator[str]:
    with ExitStack() as stack:
        try:
            url = stack.enter_context(provide_redis(say=say))
        except NoRedis as exc:
            pytest.fail(str(exc), pytrace=False)
        yield url


@pytest.fixture(scope="session")
def management(broker, say) -> Management | None:
    api = Management(broker)
    try:
        # It may come up a second after AMQP does.
        eventually(api.answers, within=10 if broker.can_restart else 0)
    except AssertionError:
        say(f"No HTTP API at {broker.management_url}: what the tests declare stays on {broker.shown_url}.")
        return None
    return api


@pytest.fixture
def prefix(broker, management) -> Iterator[str]:
    """A name for this test alone; every queue and exchange with it in its name is deleted afterwards."""
    name = f"t{secrets.token_hex(4)}"
    yield name
    if broker.can_restart:
        # A test that failed with the broker down shall not fail the next ones.
        broker.resume()
        broker.start()
    if management:
        eventually(management.answers, within=10)
        management.delete_all(name)


@pytest.fixture
def limited_url(broker, prefix, management) -> Iterator[str]:
    """The URL of a user who may publish and consume everything and configure nothing."""
    if management is None:
        pytest.skip("users are made over the HTTP API")
    user = f"{prefix}-user"
    management.call("PUT", f"/users/{user}", {"password": "secret", "tags": ""})
    permissions = {"configure": "", "write": ".*", "read": ".*"}
    management.call("PUT", f"/permissions/{management._vhost}/{user}", permissions)
    yield as_user(broker.url, f"{user}:secret")
    management.call("DELETE", f"/users/{user}")
