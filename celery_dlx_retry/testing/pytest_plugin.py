"""The pytest plugin: a recorder of what becomes of tasks, and a RabbitMQ for tests that want a real one.

pytest imports this module in every run of every project, so only the fixtures import the rest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_dlx_retry.testing.broker import RabbitMQ
    from celery_dlx_retry.testing.recorder import Recorder


def pytest_addoption(parser: pytest.Parser) -> None:
    """Say where a RabbitMQ is, in the project's pytest configuration."""
    parser.addini(
        "dlx_broker_url", "AMQP URL of the RabbitMQ for dlx_rabbitmq; without it, dlx_rabbitmq starts one", default=""
    )


@pytest.fixture(scope="session")
def dlx_rabbitmq(pytestconfig: pytest.Config) -> Iterator[RabbitMQ]:
    """A RabbitMQ for this session: ``url`` is its AMQP URL. A given one is used and left as it is."""
    from celery_dlx_retry.errors import NoBroker  # noqa: PLC0415
    from celery_dlx_retry.testing.rabbitmq import provide  # noqa: PLC0415

    try:
        broker = provide(url=pytestconfig.getini("dlx_broker_url"))
    except NoBroker as exc:
        pytest.fail(str(exc), pytrace=False)
    with broker:
        yield broker


@pytest.fixture
def dlx(pytestconfig: pytest.Config) -> Iterator[Recorder]:
    """What becomes of tasks in this test, in which nothing waits: ``dlx.assert_retried(task, delays=[1, 2, 4])``."""
    from celery_dlx_retry.testing.recorder import record  # noqa: PLC0415

    with record(broker=pytestconfig.getini("dlx_broker_url")) as recorder:
        yield recorder
