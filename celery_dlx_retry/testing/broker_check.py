"""Keep a test from sending tasks to a broker that is not the broker of the test."""

from __future__ import annotations

import functools
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from celery import Celery
from kombu.connection import Connection

from celery_dlx_retry.broker.address import addresses, shown
from celery_dlx_retry.errors import ConfigurationError
from celery_dlx_retry.testing.broker import RabbitMQ
from celery_dlx_retry.testing.rabbitmq import URL

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from celery_dlx_retry.broker.address import BrokerAddress

#: Transports that reach no other process.
_LOCAL = ("memory", "filesystem")


class WrongBroker(ConfigurationError):
    """``broker``, ``known``."""

    sentence = (
        "A task was about to be sent to {broker}, but {known}. Set app.conf.broker_url = dlx_rabbitmq.url before the "
        "app first sends: in a fixture with scope='session' and autouse=True, in the conftest.py beside your tests. "
        "If that broker is for tests, name it: DLX_TEST_BROKER_URL."
    )


@contextmanager
def only_to_known_brokers(known: Callable[[], list[str]], refuse: Callable[[str], None]) -> Iterator[None]:
    """Until the block ends, raise ``WrongBroker`` when an app is about to send a task to another broker."""
    original = Celery.producer_or_acquire

    @functools.wraps(original)
    def producer_or_acquire(app: Any, producer: Any = None) -> Any:
        # With task_always_eager Celery takes a producer, too, and sends nothing.
        if producer is None and not app.conf.task_always_eager:
            # Not the setting: Celery keeps its connections when the setting changes.
            connection = app.producer_pool.connections.connection
            if problem := _problem(connection, known()):
                refuse(str(problem))
                raise problem
        return original(app, producer)

    with patch.object(Celery, "producer_or_acquire", producer_or_acquire):
        yield


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
