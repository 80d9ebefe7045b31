"""Find or start a RabbitMQ: a given one, one in Docker, or one of the server that is installed."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from celery_dlx_retry.errors import BadBrokerURL, NoBroker
from celery_dlx_retry.testing import container, local_node
from celery_dlx_retry.testing.broker import RabbitMQ
from celery_dlx_retry.testing.container import MANAGEMENT_PORT, start_container
from celery_dlx_retry.testing.local_node import start_local_node
from celery_dlx_retry.testing.sandbox import WayFailed
from celery_dlx_retry.values.broker_urls import AMQP_SCHEMES, check_broker_urls

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

URL = "DLX_TEST_BROKER_URL"  # the AMQP URL of a RabbitMQ to use
MANAGEMENT_URL = "DLX_TEST_MANAGEMENT_URL"  # of its HTTP API; otherwise port 15672 of the same host is tried
IMAGE = "DLX_TEST_RABBITMQ_IMAGE"  # the image to run if Docker answers
DEFAULT_IMAGE = "rabbitmq:4-management"


def to_stderr(line: str) -> None:
    """Write a line where people see it even if the output is piped."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def provide(*, url: str = "", say: Callable[[str], None] = to_stderr) -> RabbitMQ:
    """Return a RabbitMQ to be used in a ``with`` block, or raise ``NoBroker``.

    If the environment or the caller gives a URL, that RabbitMQ must answer: no test should run against another one by
    accident. Otherwise this tries Docker, then an installed rabbitmq-server, and says why each one fails. It never
    uses a RabbitMQ that happens to run on this machine.
    """
    return given(url) or first_of(WAYS, say)


def given(url: str = "") -> RabbitMQ | None:
    """Return the RabbitMQ that the environment, or else the caller, asks for; None if neither does."""
    url = os.environ.get(URL) or url
    return named(url, by=URL) if url else None


def named(url: str, *, by: str) -> RabbitMQ:
    """Return the RabbitMQ with this URL; raise NoBroker if it does not answer. ``by`` is the option that names it."""
    try:
        check_broker_urls(url)
    except BadBrokerURL as exc:
        raise NoBroker(tried=f"{by}: {exc}") from exc
    parts = urlsplit(url)
    if parts.scheme not in AMQP_SCHEMES:
        raise NoBroker(tried=f"{by} is no AMQP URL: it starts with {parts.scheme!r}")
    login = parts.netloc.rpartition("@")[0] or "guest:guest"
    guessed = f"http://{login}@{parts.hostname or 'localhost'}:{MANAGEMENT_PORT}"
    broker = RabbitMQ(url, management_url=os.environ.get(MANAGEMENT_URL) or guessed)
    if problem := broker.problem():
        raise NoBroker(tried=f"{by}={broker.shown_url} does not answer: {problem}")
    return broker


def first_of(ways: Mapping[str, Callable[[], RabbitMQ]], say: Callable[[str], None]) -> RabbitMQ:
    """Start a RabbitMQ in the first of these ways that works; say which way comes after one that failed."""
    tried = []
    for number, way in enumerate(ways.values(), start=1):
        try:
            return way()
        except WayFailed as failure:  # noqa: PERF203 - the failure is why there is a loop
            if following := [*ways][number : number + 1]:
                say(f"{failure}; trying {following[0]}")
            tried.append(str(failure))
    raise NoBroker(tried="; ".join(tried))


def from_docker() -> RabbitMQ:
    """Start a container."""
    return start_container(os.environ.get(IMAGE) or DEFAULT_IMAGE)


WAYS: dict[str, Callable[[], RabbitMQ]] = {container.WAY: from_docker, local_node.WAY: start_local_node}
