"""Permissions as patterns: the names of an app, and no others."""

from __future__ import annotations

import re
import shlex

import pytest
from celery import Celery
from kombu.entity import Exchange, Queue

from celery_dlx_retry.app.routes import exchanges_of_tasks
from celery_dlx_retry.topology.names import Names
from celery_dlx_retry.topology.permissions import WorkNames, grants, literal

PIDBOX = r"(.*\.)?celery\.pidbox"
ORDERS = WorkNames(queue="orders", exchanges=("orders",))
SHOP = grants(Names(prefix="shop"), work=[ORDERS, ORDERS], dead_letter_keys=["orders"], celery=[PIDBOX])
GRANTS = {grant.role: grant for grant in SHOP}
#: The queue and the exchange have different names, and an operator declares both.
STRICT = grants(
    Names(prefix="shop"),
    work=[WorkNames(queue="orders", exchanges=("tasks",), is_declared=False)],
    dead_letter_keys=["orders"],
    celery=[PIDBOX],
    sends_by_name=False,
)
STRICT_GRANTS = {grant.role: grant for grant in STRICT}


def test_the_permissions_of_a_worker_are_api():
    worker = GRANTS["worker"]

    assert worker.configure == rf"^(orders|orders\.dead|shop\.v[12]\..*|{PIDBOX})$"
    assert worker.write == rf"^(orders|orders\.dead|shop\.v[12]\..*|{PIDBOX}|amq\.default)$"
    assert worker.read == rf"^(orders|shop\.v[12]\..*|{PIDBOX})$"


def test_only_who_sends_as_celery_does_reaches_every_queue():
    assert {role for role, it in GRANTS.items() if it.reaches_every_queue} == {"worker", "worker-that-checks", "sender"}
    assert not any(it.reaches_every_queue for it in STRICT_GRANTS.values())


def test_a_sender_that_declares_nothing_may_only_publish():
    sender = STRICT_GRANTS["sender"]

    assert (sender.configure, sender.write, sender.read) == ("^$", r"^(shop\.v2\..*|tasks)$", "^$")


def test_a_worker_that_declares_nothing_may_not_delete_its_queues():
    worker = STRICT_GRANTS["worker-that-checks"]

    assert worker.configure == rf"^({PIDBOX})$"
    assert worker.read == rf"^(orders|{PIDBOX})$"


def test_only_who_looks_into_dead_letters_may_read_them():
    readers = {role for role, grant in GRANTS.items() if re.search(grant.read, "orders.dead")}

    assert readers == {"reader", "operator"}


def test_a_viewer_has_no_permission_at_all():
    viewer = GRANTS["viewer"]

    assert (viewer.configure, viewer.write, viewer.read) == ("^$", "^$", "^$")


@pytest.mark.parametrize("name", ["ordersXdead", "shopXv1.dead", "more.orders", "orders.dead.more", "celeryXpidbox"])
def test_no_pattern_matches_a_name_of_another_app(name):
    patterns = [it for grant in GRANTS.values() for it in (grant.configure, grant.write, grant.read)]

    assert [pattern for pattern in patterns if re.search(pattern, name)] == []


@pytest.mark.parametrize("name", ["a.b", "a+b", "(a|b)", "a\\b", "^a$", "a{2}", "[a]", "a*?", "ä b"])
def test_a_name_stands_for_itself(name):
    assert re.fullmatch(literal(name), name)


def test_the_command_survives_a_shell():
    command = GRANTS["sender"].rabbitmqctl(user="o'hara", vhost="a/b c")

    words = shlex.split(command)
    assert words[:5] == ["rabbitmqctl", "set_permissions", "--vhost", "a/b c", "o'hara"]
    assert words[5:] == ["^(orders)$", r"^(orders|shop\.v2\..*|amq\.default)$", "^(orders)$"]


@pytest.mark.parametrize(
    ("kind", "routes", "found"),
    [
        ("direct", None, {""}),
        ("topic", None, {"tasks"}),
        ("direct", {"*": {"exchange": "tasks", "routing_key": "orders"}}, {"tasks"}),
        ("topic", lambda *_, **__: 1 / 0, {""}),
    ],
)
def test_the_default_exchange_is_known_from_queues_and_routes(kind, routes, found):
    app = Celery("shop", broker="amqp://", set_as_current=False)
    app.conf.task_queues = [Queue("orders", Exchange("tasks", type=kind), routing_key="orders")]
    app.conf.task_default_queue = "orders"
    app.conf.task_routes = routes if routes is None else (routes,)
    app.finalize()

    assert exchanges_of_tasks(app) == found
