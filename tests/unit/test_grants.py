"""Permissions as patterns: the names of an app, and no others."""

from __future__ import annotations

import re
import shlex

import pytest

from celery_dlx_retry.core.grants import grants, literal, territory
from celery_dlx_retry.core.topology import Names

PIDBOX = r"(.*\.)?celery\.pidbox"
SHOP = territory(Names(prefix="shop"), work=["orders", "orders"], families=["orders"], celery=[PIDBOX])
GRANTS = {grant.role: grant for grant in grants(SHOP)}


def test_the_permissions_of_a_worker_are_api():
    worker = GRANTS["worker"]

    assert worker.configure == rf"^(orders|orders\.dead|shop\.v[12]\..*|{PIDBOX})$"
    assert worker.write == rf"^(orders|orders\.dead|shop\.v[12]\..*|{PIDBOX}|amq\.default)$"
    assert worker.read == rf"^(orders|shop\.v[12]\..*|{PIDBOX})$"


def test_only_who_looks_into_dead_letters_may_read_them():
    readers = {role for role, grant in GRANTS.items() if re.search(grant.read, "orders.dead")}

    assert readers == {"viewer", "operator"}


def test_who_looks_may_change_nothing():
    assert (GRANTS["viewer"].configure, GRANTS["viewer"].write) == ("^$", "^$")


@pytest.mark.parametrize("name", ["ordersXdead", "shopXv1.dead", "more.orders", "orders.dead.more", "celeryXpidbox"])
def test_no_pattern_matches_a_name_of_somebody_else(name):
    patterns = [it for grant in GRANTS.values() for it in (grant.configure, grant.write, grant.read)]

    assert [pattern for pattern in patterns if re.search(pattern, name)] == []


@pytest.mark.parametrize("name", ["a.b", "a+b", "(a|b)", "a\\b", "^a$", "a{2}", "[a]", "a*?", "ä b"])
def test_a_name_stands_for_itself(name):
    assert re.fullmatch(literal(name), name)


def test_the_command_survives_a_shell():
    command = GRANTS["sender"].rabbitmqctl(user="o'hara", vhost="a/b c")

    words = shlex.split(command)
    assert words[:5] == ["rabbitmqctl", "set_permissions", "--vhost", "a/b c", "o'hara"]
    assert words[5:] == ["^(orders)$", r"^(orders|orders\.dead|shop\.v[12]\..*|amq\.default)$", "^(orders)$"]
