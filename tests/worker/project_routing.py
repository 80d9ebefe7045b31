"""The project with queues on every kind of exchange, and routes that would lead a careless retry astray."""

from __future__ import annotations

import threading

from kombu.common import Broadcast
from kombu.entity import Exchange, Queue
from project import app, record

from celery_dlx_retry import Breaker, DLXRetryTask, Fixed

PREFIX = app.conf.task_default_queue.removesuffix(".work")


def name(part: str) -> str:
    return f"{PREFIX}.{part}"


DIRECT, TOPIC = Exchange(name("x-direct"), type="direct"), Exchange(name("x-topic"), type="topic")
FANOUT, HEADERS = Exchange(name("x-fanout"), type="fanout"), Exchange(name("x-headers"), type="headers")

app.conf.task_queues = [
    Queue(name("work"), Exchange(name("work")), routing_key=name("work")),
    Queue(name("direct"), DIRECT, routing_key="another.key"),
    Queue(name("topic-one"), TOPIC, routing_key="order.*"),
    Queue(name("topic-two"), TOPIC, routing_key="order.#"),
    Queue(name("fanout-one"), FANOUT),
    Queue(name("fanout-two"), FANOUT),
    Queue(name("headers-one"), HEADERS, binding_arguments={"x-match": "all", "kind": "report"}),
    Queue(name("headers-two"), HEADERS, binding_arguments={"x-match": "any", "kind": "report", "size": "big"}),
    Queue(name("default-exchange"), Exchange(""), routing_key=name("default-exchange")),
    Queue(name("ordered"), Exchange(name("ordered")), routing_key=name("ordered"), max_priority=10),
    Broadcast(name("broadcast")),
]


def route(task, *_, **__):
    return {"exchange": DIRECT.name, "routing_key": "another.key"} if task == "routing.by_function" else None


app.conf.task_routes = (
    route,
    {"routing.by_map": {"exchange": TOPIC.name, "routing_key": "order.new", "exchange_type": "topic"}},
    {"routing.by_queue": {"queue": name("fanout-one")}},
)


def once(self, countdown=0.3, only=None, **options):
    """Retry once, unless it is another queue's turn."""
    info = self.request.delivery_info
    record(self, worker=self.request.hostname, priority=info["priority"], info=dict(info))
    if self.request.retries == 0 and only in {None, info.queue.name}:
        raise self.retry(countdown=countdown, **options)
    return info.queue.name


for route_name in ("plain", "by_function", "by_map", "by_queue"):
    app.task(once, bind=True, base=DLXRetryTask, name=f"routing.{route_name}")
app.task(once, bind=True, base=DLXRetryTask, name="routing.by_attribute", queue=name("fanout-two"))


@app.task(
    bind=True,
    base=DLXRetryTask,
    name="routing.fails",
    policy=Fixed(0.1, retries=1),
    breaker=Breaker(1, probe_every=1),
)
def fails(self, **_):
    record(self, info=dict(self.request.delivery_info))
    raise ConnectionError("down")


@app.task(bind=True, base=DLXRetryTask, name="routing.hold")
def hold(self, seconds, countdown=None):  # noqa: ARG001
    record(self)
    threading.Event().wait(seconds)
