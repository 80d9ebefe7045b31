"""Find or provide a Redis, for the result backends of tests."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
from contextlib import contextmanager
from pathlib import Path
from tempfile import gettempdir
from typing import TYPE_CHECKING

from celery_dlx_retry.errors import DLXError
from celery_dlx_retry.testing.rabbitmq import to_stderr
from celery_dlx_retry.testing.sandbox import (
    LOOPBACK,
    Sandbox,
    WayFailed,
    free_ports,
    listens,
    unprivileged,
    wait_until,
)
from celery_dlx_retry.values.broker_urls import read_url, shown_url
from tests.provision.apt import apt_install, one_at_a_time

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

URL = "DLX_TEST_REDIS_URL"
DEFAULT_PORT = 6379
START_SECONDS = 10.0


class NoRedis(DLXError):
    """``tried``: why each way failed."""

    sentence = (
        "No Redis could be had ({tried}). "
        "Give one with DLX_TEST_REDIS_URL=redis://127.0.0.1/0, or install redis-server."
    )


@contextmanager
def provide_redis(*, say: Callable[[str], None] = to_stderr) -> Iterator[str]:
    """Yield the URL of a Redis that was given, or of one without persistence that ends with the block."""
    if url := os.environ.get(URL):
        yield checked(url)
        return
    try:
        server = find_server(say)
    except WayFailed as failure:
        raise NoRedis(tried=str(failure)) from failure
    sandbox = Sandbox("redis")
    try:
        password = secrets.token_hex(16)
        port = start(server, sandbox, password)
        yield f"redis://:{password}@{LOOPBACK}:{port}/0"
    finally:
        sandbox.close()


def checked(url: str) -> str:
    """Return the URL if somebody listens there."""
    shown, parts = shown_url(url), read_url(url)
    if parts is None:
        raise NoRedis(tried=f"{URL} is {shown}")
    try:
        socket.create_connection((parts.hostname or LOOPBACK, parts.port or DEFAULT_PORT), timeout=5).close()
    except OSError as exc:
        raise NoRedis(tried=f"{URL}={shown} does not answer: {exc}") from exc
    return url


def find_server(say: Callable[[str], None]) -> str:
    """Return the path of redis-server, installed if need be."""
    with one_at_a_time():
        found = shutil.which("redis-server")
        if found is None:
            apt_install("redis-server", say=say)
            found = shutil.which("redis-server")
    if found is None:
        raise WayFailed(way="redis-server", problem="not on PATH")
    return found


def start(server: str, sandbox: Sandbox, password: str) -> int:
    """Start without persistence and return the port."""
    (port,) = free_ports(1)
    options = {"port": str(port), "bind": LOOPBACK, "save": '""', "appendonly": "no", "dir": str(sandbox.path)}
    conf = sandbox.path / "redis.conf"
    conf.touch(mode=0o600)
    conf.write_text("".join(f"{name} {value}\n" for name, value in {**options, "requirepass": password}.items()))
    account = unprivileged("redis", reaching=[Path(gettempdir()), Path(server).parent])
    if account:
        account.own(sandbox.path)
    sandbox.spawn("redis", [server, str(conf)], dict(os.environ), account=account)
    if not wait_until(lambda: not sandbox.pid("redis") or listens(port), within=START_SECONDS) or not sandbox.pid(
        "redis"
    ):
        raise NoRedis(tried=f"redis-server did not start: {sandbox.said('redis.out')}")
    return port
