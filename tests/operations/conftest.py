"""An app on a real broker, and a session with it: operations are called as a web page or a script calls them."""

from __future__ import annotations

import pytest
from celery import Celery

from celery_dlx_retry import Delays, DLXRetryTask
from celery_dlx_retry.broker import declare as declare_module
from celery_dlx_retry.broker import lanes as lanes_module
from celery_dlx_retry.events import subscribe, unsubscribe
from celery_dlx_retry.operations.session import open_session


@pytest.fixture(autouse=True)
def settled(monkeypatch):
    """No test kills a broker with young quorum queues, so none waits for them."""
    for module in (declare_module, lanes_module):
        monkeypatch.setattr(module, "SETTLE_SECONDS", 0.0)


def charge_card(order):
    return order


@pytest.fixture
def make_app(prefix):
    """Make an app with one task of ours, ``shop.charge``, and one work queue."""
    apps = []

    def make(url, **conf):
        app = Celery("shop", broker=url, set_as_current=False)
        app.conf.update(task_default_queue=f"{prefix}.work", dlx_prefix=prefix, **conf)
        app.task(name="shop.charge", base=DLXRetryTask, policy=Delays([60, 600]), shared=False)(charge_card)
        apps.append(app)
        return app

    yield make
    for app in apps:
        app.close()


@pytest.fixture
def app(make_app, broker):
    return make_app(broker.url)


@pytest.fixture
def audited(caplog):
    """The lines of the audit log."""
    caplog.set_level("INFO", logger="celery_dlx_retry.audit")
    return LogLines(caplog)


@pytest.fixture
def events():
    """The events that operations emit."""
    found = []
    subscribe(found.append)
    yield found
    unsubscribe(found.append)


class LogLines:
    def __init__(self, caplog):
        self._caplog = caplog

    def __getitem__(self, index):
        lines = [it.getMessage() for it in self._caplog.records if it.name == "celery_dlx_retry.audit"]
        return lines[index]


@pytest.fixture
def session(app, broker, management):
    url = broker.management_url if management else None
    with open_session(app, management_url=url, operator="anna@web") as it:
        yield it


@pytest.fixture
def charge(app):
    """Send ``shop.charge`` with a countdown; return the id."""
    app.finalize()

    def send(seconds=600):
        return app.tasks["shop.charge"].apply_async((1,), countdown=seconds).id

    return send
