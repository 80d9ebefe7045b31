"""Find or start a RabbitMQ, as the wheel does; also from a root filesystem, and installed with apt-get."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from celery_dlx_retry.errors import NoBroker
from celery_dlx_retry.testing import local_node
from celery_dlx_retry.testing.local_node import find_scripts
from celery_dlx_retry.testing.rabbitmq import WAYS, first_of, given, to_stderr
from celery_dlx_retry.testing.sandbox import WayFailed
from tests.provision import apt
from tests.provision.apt import apt_install, one_at_a_time
from tests.provision.node import start_private_node

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_dlx_retry.testing import RabbitMQ

ROOT = "DLX_TEST_RABBITMQ_ROOT"  # a root filesystem whose RabbitMQ to run as a private node; "/" is this machine's own


def provide(*, say: Callable[[str], None] = to_stderr) -> RabbitMQ:
    """Return a RabbitMQ to be used in a ``with`` block, or raise ``NoBroker``.

    If the environment names a URL or a root filesystem, that one must work. Otherwise this tries Docker, an installed
    rabbitmq-server and apt-get, and says why each one fails.
    """
    if (broker := given()) is not None:
        return broker
    if root := os.environ.get(ROOT):
        try:
            return start_private_node(None if root == "/" else Path(root).resolve())
        except WayFailed as failure:
            raise NoBroker(tried=f"{ROOT}={failure}") from failure
    ways = {**WAYS, local_node.WAY: start_private_node, apt.WAY: lambda: from_apt(say)}
    return first_of(ways, say)


def from_apt(say: Callable[[str], None]) -> RabbitMQ:
    """Install RabbitMQ, unless another process has just installed it; then start a node."""
    with one_at_a_time():
        try:
            find_scripts()
        except WayFailed:
            apt_install("rabbitmq-server", say=say)
    try:
        return start_private_node()
    except WayFailed as failure:
        raise WayFailed(way=apt.WAY, problem=f"what is installed does not start either ({failure})") from failure
