"""The pytest plugin of celery_dlx_retry. Not inside the package: pytest imports it at every start, Celery's with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_dlx_retry.testing import RabbitMQ, Recorder


def pytest_addoption(parser: pytest.Parser) -> None:
    """Say where a RabbitMQ is, in the project's pytest configuration."""
    parser.addini(
        "dlx_broker_url", "AMQP URL of the RabbitMQ for dlx_rabbitmq; the default is to start one", default=""
    )


@pytest.fixture(scope="session")
def dlx_rabbitmq(pytestconfig: pytest.Config) -> Iterator[RabbitMQ]:
    """A RabbitMQ of this session's own: ``url`` is its AMQP URL. A given one is used, and left as it is then."""
    from celery_dlx_retry.errors import NoBroker  # noqa: PLC0415 - see above
    from celery_dlx_retry.testing import provide  # noqa: PLC0415

    try:
        broker = provide(url=pytestconfig.getini("dlx_broker_url"), may_install=False)
    except NoBroker as exc:
        pytest.fail(str(exc), pytrace=False)
    with broker:
        yield broker


@pytest.fixture
def dlx() -> Iterator[Recorder]:
    """What becomes of tasks in this test, in which nothing waits: ``dlx.assert_retried(task, delays=[1, 2, 4])``."""
    from celery_dlx_retry.testing import record  # noqa: PLC0415 - see above

    with record() as recorder:
        yield recorder
