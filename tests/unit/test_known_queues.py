"""Which work queues an app knows: those that it has, and those that its routes name, in each of Celery's notations."""

from __future__ import annotations

import re

import pytest
from celery import Celery
from kombu.entity import Queue

from celery_dlx_retry.operations.app_queues import known_work_queues


@pytest.mark.parametrize(
    "routes",
    [
        None,
        {"shop.charge": {"queue": "orders"}, "shop.ship": {"exchange": "media", "routing_key": "video"}},
        {"shop.*": "orders"},
        {"shop.charge": {"queue": Queue("orders")}},
        [{"shop.charge": {"queue": "orders"}}, {"shop.mail": {"queue": "orders"}}],
        ([("shop.*", {"queue": "orders"}), (re.compile("mail"), {"queue": "orders"})],),
        ("shop.routes.choose", {"shop.*": "orders"}, lambda *_: {"queue": "nobody can tell"}),
    ],
)
def test_a_queue_that_a_route_names_is_known(routes):
    app = Celery("routed", set_as_current=False)
    app.conf.task_routes = routes

    assert known_work_queues(app) == (["celery", "orders"] if routes else ["celery"])
