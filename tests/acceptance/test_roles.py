"""What a broker user of each role can do, cell by cell of the table on the page, with real users."""

from __future__ import annotations

import re
import secrets
from contextlib import closing
from pathlib import Path

import pytest
from amqp import Message
from amqp.exceptions import AccessRefused, PreconditionFailed
from kombu.connection import Connection

from celery_dlx_retry.broker.declare import declare
from celery_dlx_retry.topology.names import Names, WorkQueue
from celery_dlx_retry.topology.objects import lane, shared_objects, work_queue_objects
from celery_dlx_retry.topology.permissions import WorkNames, grants
from tests.acceptance.tenancy import Tenancy

PAGE = (Path(__file__).parents[2] / "docs" / "brokers.md").read_text()
SECTION = PAGE.partition("### What each role can do")[2].partition("What RabbitMQ cannot prevent")[0]
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")] for line in re.findall(r"^\|.*\|$", SECTION, re.MULTILINE)
]
ROLES = ROWS[0][1:]
TABLE = {(title, role): cell for title, *cells in ROWS[2:] for role, cell in zip(ROLES, cells, strict=True)}

# Classic: only such a queue can be deleted "if empty", which these are not.
NAMES = Names(kind="classic")
WORK = WorkQueue(name="orders")
LANE = NAMES.lane(WORK, 60_000)

ACTIONS = {
    "send to a queue of another app": lambda channel: _publish(channel, "", "invoices"),
    "bind a queue of another app": lambda channel: channel.queue_bind("invoices", NAMES.return_exchange(), "invoices"),
    "read a queue of another app": lambda channel: channel.basic_get("invoices"),
    "make a dead letter": lambda channel: _publish(channel, NAMES.dead(), "orders"),
    "take or purge tasks": lambda channel: channel.queue_purge("orders"),
    "take or purge waiting tasks": lambda channel: channel.queue_purge(LANE),
    "take or purge dead letters": lambda channel: channel.queue_purge("orders.dead"),
    "delete the work queue": lambda channel: channel.queue_delete("orders", if_empty=True),
    "delete a lane": lambda channel: channel.queue_delete(LANE, if_empty=True),
    "delete the dead-letter queue": lambda channel: channel.queue_delete("orders.dead", if_empty=True),
}
WAYS_TO_SEND = [
    lambda channel: _publish(channel, "", "orders"),
    lambda channel: _publish(channel, "orders", "orders"),
    lambda channel: _publish(channel, "tasks", "orders"),
    lambda channel: _publish(channel, NAMES.return_exchange(), "orders"),
]


def _publish(channel, exchange, routing_key):
    channel.basic_publish_confirm(Message("[]"), exchange=exchange, routing_key=routing_key)


@pytest.fixture(scope="module")
def tenancy(broker, http_api):
    """A virtual host with the queues of two apps."""
    with closing(Tenancy(broker, http_api, f"t{secrets.token_hex(4)}")) as it, Connection(it.url) as connection:
        channel = connection.default_channel
        for name in ("orders", "invoices"):
            channel.exchange_declare(name, "direct", durable=True, auto_delete=False)
            channel.queue_declare(name, durable=True, auto_delete=False)
            channel.queue_bind(name, name, name)
        channel.exchange_declare("tasks", "topic", durable=True, auto_delete=False)
        channel.queue_bind("orders", "tasks", "orders")
        declare(connection, shared_objects(NAMES) | work_queue_objects(NAMES, WORK) | lane(NAMES, WORK, 60_000))
        yield it


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("queues", ["celerys", "strict"])
def test_a_role_can_do_what_its_column_says(tenancy, role, queues):
    url = tenancy.user(*_patterns(role, is_strict=queues == "strict"))
    expected = {
        title: cell == "yes" or (cell == "celery: yes" and queues == "celerys")
        for (title, of), cell in TABLE.items()
        if of == role
    }

    found = {"send a task": any(_may(url, way) for way in WAYS_TO_SEND)}
    for title, action in ACTIONS.items():
        _fill(tenancy.url)
        found[title] = _may(url, action)

    assert set(TABLE.values()) == {"yes", "no", "celery: yes"}
    assert found == expected


def _patterns(role, *, is_strict):
    there = grants(
        NAMES,
        work=[WorkNames(queue="orders", exchanges=("tasks" if is_strict else "orders",), is_declared=not is_strict)],
        dead_letter_keys=["orders"],
        celery=[],
        sends_by_name=not is_strict,
    )
    return next((it.configure, it.write, it.read) for it in there if it.role == role)


def _fill(url):
    """Have a message in each queue, so that none is deleted "if empty"."""
    with Connection(url) as connection:
        for queue in ("orders", "orders.dead", LANE, "invoices"):
            _publish(connection.default_channel, "", queue)


def _may(url, action):
    with Connection(url) as connection, closing(connection.channel()) as channel:
        try:
            action(channel)
        except AccessRefused:
            return False
        except PreconditionFailed:
            return True  # to delete it: it is not empty
    return True
