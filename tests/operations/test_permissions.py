"""The permissions of an app as values."""

from __future__ import annotations

import re

import pytest

from celery_dlx_retry.operations.operation_errors import NeedsRabbitMQ
from celery_dlx_retry.operations.permissions import ROLES, list_permissions


def test_each_role_has_a_grant_and_no_broker_is_needed(make_app, prefix):
    found = list_permissions(make_app("amqp://127.0.0.1:1/shop"))

    assert found.vhost == "shop"
    assert [grant.role for grant in found.grants] == list(ROLES)
    worker = found.grants[0]
    assert re.search(worker.read, f"{prefix}.work")
    assert not re.search(worker.read, "of another app")


def test_some_roles_are_some_grants(app):
    assert [grant.role for grant in list_permissions(app, roles=["viewer"]).grants] == ["viewer"]


def test_another_broker_has_no_such_permissions(make_app):
    with pytest.raises(NeedsRabbitMQ):
        list_permissions(make_app("memory://"))
