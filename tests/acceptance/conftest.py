"""Real workers in processes of their own, an operator's desk, and the command line."""

from __future__ import annotations

import sys
from contextlib import closing
from types import ModuleType

import pytest
from celery import Celery
from harness import project

from tests.acceptance.commandline import CommandLine
from tests.acceptance.desk import Desk
from tests.worker.stage import stage

__all__ = ["project"]


@pytest.fixture(scope="module")
def shared_desk(request):
    with stage(request) as staged, closing(Desk(staged, api(request))) as it:
        yield it


@pytest.fixture
def desk(shared_desk):
    """Empty again after each test."""
    yield shared_desk
    shared_desk.clear()


@pytest.fixture(scope="module")
def staffed_desk(request):
    """With a worker that replays run on."""
    with stage(request) as staged, closing(Desk(staged, api(request), is_staffed=True)) as it:
        staged.start().wait_until_ready()
        yield it
        it.clear()


@pytest.fixture(scope="module")
def http_api(management):
    """For what cannot be shown without it."""
    if management is None:
        pytest.skip("no HTTP API")
    return management


@pytest.fixture(scope="module")
def dlx(request, broker, http_api):
    """The commands of the module's ``project``."""
    assert http_api
    it = CommandLine(request.getfixturevalue("project"), broker)
    yield it
    it.close()


@pytest.fixture(scope="module")
def nowhere():
    """The words for an app whose broker is down."""
    module = ModuleType("shop_nowhere")
    module.app = Celery("shop", broker="amqp://shop:geheim@127.0.0.1:1/shop", set_as_current=False)
    sys.modules[module.__name__] = module
    yield "-A", module.__name__, "dlx"
    sys.modules.pop(module.__name__)


def api(request) -> str:
    """Where the broker's HTTP API is; empty if there is none."""
    management, broker = (request.getfixturevalue(name) for name in ("management", "broker"))
    return broker.management_url if management else ""
