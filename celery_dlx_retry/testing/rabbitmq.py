"""Find or provide a RabbitMQ, in the order in which people expect it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from celery_dlx_retry.errors import BadBrokerURL, NoBroker
from celery_dlx_retry.testing import apt, container, node
from celery_dlx_retry.testing.apt import apt_install, one_at_a_time
from celery_dlx_retry.testing.broker import RabbitMQ
from celery_dlx_retry.testing.container import MANAGEMENT_PORT, start_container
from celery_dlx_retry.testing.node import find_scripts, start_private_node
from celery_dlx_retry.testing.sandbox import WayFailed
from celery_dlx_retry.values.broker_urls import AMQP_SCHEMES, check_broker_urls

if TYPE_CHECKING:
    from collections.abc import Callable

URL = "DLX_TEST_BROKER_URL"  # the AMQP URL of a RabbitMQ to use
MANAGEMENT_URL = "DLX_TEST_MANAGEMENT_URL"  # of its HTTP API; otherwise port 15672 of the same host is tried
IMAGE = "DLX_TEST_RABBITMQ_IMAGE"  # the image to run if Docker answers
ROOT = "DLX_TEST_RABBITMQ_ROOT"  # a root filesystem whose RabbitMQ to run as a private node; "/" is this machine's own
DEFAULT_IMAGE = "rabbitmq:4-management"


def to_stderr(line: str) -> None:
    """Where people see it even if the output is piped."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def provide(*, url: str = "", may_install: bool = True, say: Callable[[str], None] = to_stderr) -> RabbitMQ:
    """Return a RabbitMQ to be used in a ``with`` block, or raise ``NoBroker``.

    One that the environment or the caller asks for has to work: nobody wants to test against another by accident.
    Otherwise Docker, an installed rabbitmq-server and, if it may install one, apt-get are tried; a way that fails is
    said, and the next one is taken. A RabbitMQ that happens to run on the machine is never used unless its URL is
    given.
    """
    if url := os.environ.get(URL) or url:
        return given(url)
    if root := os.environ.get(ROOT):
        try:
            return start_private_node(None if root == "/" else Path(root).resolve())
        except WayFailed as failure:
            raise NoBroker(tried=f"{ROOT}={failure}") from failure
    tried = []
    ways = {container.WAY: from_docker, node.WAY: from_installed} | ({apt.WAY: from_apt} if may_install else {})
    for number, way in enumerate(ways.values(), start=1):
        try:
            return way(say)
        except WayFailed as failure:  # noqa: PERF203 - the failure is why there is a loop
            # No alarm: that is what the next one is for, and if there is none, all of them are told.
            if following := [*ways][number : number + 1]:
                say(f"{failure}; trying {following[0]}")
            tried.append(str(failure))
    raise NoBroker(tried="; ".join(tried))


def given(url: str) -> RabbitMQ:
    """Use this one, if it answers."""
    try:
        check_broker_urls(url)
    except BadBrokerURL as exc:
        raise NoBroker(tried=f"{URL}: {exc}") from exc
    parts = urlsplit(url)
    if parts.scheme not in AMQP_SCHEMES:
        raise NoBroker(tried=f"{URL} is no AMQP URL: it starts with {parts.scheme!r}")
    login = parts.netloc.rpartition("@")[0] or "guest:guest"
    guessed = f"http://{login}@{parts.hostname or 'localhost'}:{MANAGEMENT_PORT}"
    broker = RabbitMQ(url, management_url=os.environ.get(MANAGEMENT_URL) or guessed)
    if problem := broker.problem():
        raise NoBroker(tried=f"{URL}={broker.shown_url} does not answer: {problem}")
    return broker


def from_docker(_say: Callable[[str], None]) -> RabbitMQ:
    """Start a container."""
    return start_container(os.environ.get(IMAGE) or DEFAULT_IMAGE)


def from_installed(_say: Callable[[str], None]) -> RabbitMQ:
    """Start a private node of the RabbitMQ that is installed."""
    return start_private_node()


def from_apt(say: Callable[[str], None]) -> RabbitMQ:
    """Install RabbitMQ unless it is there, be it that another process of ours has just done so; then start a node."""
    with one_at_a_time():
        try:
            find_scripts()
        except WayFailed:
            apt_install("rabbitmq-server", say=say)
    try:
        return start_private_node()
    except WayFailed as failure:
        raise WayFailed(way="apt-get", problem=f"what is installed does not start either ({failure})") from failure
