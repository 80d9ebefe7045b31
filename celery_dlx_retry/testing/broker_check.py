"""Keep a test from sending tasks to a broker that is not the broker of the test."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from kombu.connection import Connection

from celery_dlx_retry.broker.connection import addresses, shown
from celery_dlx_retry.errors import ConfigurationError
from celery_dlx_retry.testing.broker import RabbitMQ
from celery_dlx_retry.testing.rabbitmq import URL

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_dlx_retry.broker.connection import BrokerAddress

#: Transports that reach no other process.
_LOCAL = ("memory", "filesystem")


class WrongBroker(ConfigurationError):
    """``broker``, ``known``."""

    sentence = (
        "A task was about to be sent to {broker}, but {known}. Set app.conf.broker_url = dlx_rabbitmq.url before the "
        "app first sends: in a fixture with scope='session' and autouse=True, in the conftest.py beside your tests. "
        "If that broker is for tests, name it: DLX_TEST_BROKER_URL."
    )


def check_broker(app: Any, known: list[str], refuse: Callable[[str], None]) -> None:
    """Raise ``WrongBroker`` if an app that is about to send a task sends to none of these URLs."""
    if app.conf.task_always_eager:
        return  # Celery takes a producer all the same, and sends nothing
    # Not the setting: Celery keeps its connections when the setting changes.
    if problem := _problem(app.producer_pool.connections.connection, known):
        refuse(str(problem))
        raise problem


def known_brokers() -> list[str]:
    """Return the URLs of every ``RabbitMQ`` in use in this process, and of the one that the environment names."""
    return [*RabbitMQ.in_use, *filter(None, [os.environ.get(URL)])]


def _problem(connection: Connection, urls: list[str]) -> WrongBroker | None:
    if connection.transport_cls in _LOCAL:
        return None
    known = [address for url in urls for address in _addresses(url)]
    if known and set(addresses(connection)) <= set(known):
        return None
    others = " or ".join(dict.fromkeys(map(str, known)))
    return WrongBroker(
        broker=shown(connection), known=f"this test's broker is {others}" if others else "this test has no broker"
    )


def _addresses(url: str) -> list[BrokerAddress]:
    with Connection(url) as connection:
        return addresses(connection)
