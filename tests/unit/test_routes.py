"""Where Celery would send a message: the same that its own code does, as a queue."""

import pytest
from celery import Celery
from kombu.common import Broadcast
from kombu.entity import Exchange, Queue

from celery_dlx_retry import DLXRetryTask
from celery_dlx_retry.app.routes import destination, routed

DIRECT, TOPIC, FANOUT = Exchange("d"), Exchange("t", type="topic"), Exchange("f", type="fanout")


@pytest.fixture
def app():
    with Celery("test", broker="memory://", set_as_current=False) as app:
        app.conf.task_default_queue = "main"
        app.conf.task_queues = [
            Queue("main", Exchange("main"), routing_key="main"),
            Queue("one", DIRECT, routing_key="one.key"),
            Queue("red", TOPIC, routing_key="red.#"),
            Queue("fan", FANOUT),
            Broadcast("all"),
        ]
        yield app


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({}, "main"),
        ({"queue": "one"}, "one"),
        ({"queue": "new"}, "new"),
        ({"queue": Queue("given", Exchange("g"), routing_key="g")}, "given"),
        ({"queue": "one", "routing_key": "ignored by Celery"}, "one"),
        ({"exchange": "d", "routing_key": "one.key"}, None),  # who else is bound with that key, nobody knows
        ({"exchange": DIRECT, "routing_key": "one.key"}, None),
        ({"exchange": "d"}, "main"),  # Celery's own: without a key it takes the default queue
        ({"exchange": "", "routing_key": "one"}, "main"),  # and here
        ({"exchange": "unknown", "routing_key": "one.key"}, None),
        ({"exchange": "t", "routing_key": "red"}, None),
        ({"queue": "red"}, None),  # by its topic exchange
        ({"queue": "fan"}, None),
        ({"exchange": "f", "routing_key": "any"}, None),
        ({"queue": "all"}, None),
    ],
)
def test_the_queue_that_options_lead_to(app, options, name):
    @app.task(base=DLXRetryTask, shared=False, name="t")
    def task(): ...

    queue = destination(app, routed(task, (), {}, options))

    assert (queue and queue.name) == name


def test_all_options_come_through_and_the_router_sees_those_that_celery_shows_it(app):
    seen = []

    def route(name, args, kwargs, options, task=None, **_):
        seen.append((name, args, kwargs, dict(options), task))
        return {"queue": "one", "serializer": "pickle"}

    app.conf.task_routes = [route]

    @app.task(base=DLXRetryTask, shared=False, name="t", serializer="json")
    def task(x): ...

    options = routed(task, (1,), {}, {"countdown": 5, "expires": 9, "custom": "c", "route_name": "alias"})

    (asked,) = seen
    assert asked[:3] == ("alias", (1,), {})
    assert asked[3]["custom"] == "c"
    assert not {"countdown", "expires", "route_name"} & asked[3].keys()
    assert asked[4] is task
    assert {key: options[key] for key in ("countdown", "expires", "custom", "serializer")} == {
        "countdown": 5,
        "expires": 9,
        "custom": "c",
        "serializer": "json",  # of the task and of a route, Celery takes the task's
    }
    assert options["queue"].name == "one"
