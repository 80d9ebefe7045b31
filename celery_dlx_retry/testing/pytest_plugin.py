"""The pytest plugin: a recorder of what becomes of tasks, and a RabbitMQ for tests that want a real one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from celery_dlx_retry.errors import NoBroker
from celery_dlx_retry.testing.rabbitmq import provide
from celery_dlx_retry.testing.recorder import record

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_dlx_retry.testing.broker import RabbitMQ
    from celery_dlx_retry.testing.recorder import Recorder


def pytest_addoption(parser: pytest.Parser) -> None:
    """Say where a RabbitMQ is, in the project's pytest configuration."""
    parser.addini(
        "dlx_broker_url", "AMQP URL of the RabbitMQ for dlx_rabbitmq; the default is to start one", default=""
    )


@pytest.fixture(scope="session")
def dlx_rabbitmq(pytestconfig: pytest.Config) -> Iterator[RabbitMQ]:
    """A RabbitMQ of this session's own: ``url`` is its AMQP URL. A given one is used, and left as it is then."""
    try:
        broker = provide(url=pytestconfig.getini("dlx_broker_url"), may_install=False)
    except NoBroker as exc:
        pytest.fail(str(exc), pytrace=False)
    with broker:
        yield broker


@pytest.fixture
def dlx() -> Iterator[Recorder]:
    """What becomes of tasks in this test, in which nothing waits: ``dlx.assert_retried(task, delays=[1, 2, 4])``."""
    with record() as recorder:
        yield recorder
