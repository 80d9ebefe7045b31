"""The private broker: a virtual host for each measurement, and the facts of its HTTP API."""

from __future__ import annotations

import secrets
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote, urlsplit

from benchmarks.compare import machine
from celery_dlx_retry.errors import NoBroker
from celery_dlx_retry.testing.sandbox import wait_until
from tests.management import Management

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_dlx_retry.testing import RabbitMQ


REST_SECONDS = 0.5
HTTP_SECONDS = 120.0
REST_SHARE = 0.1  # of a core


class Rabbit:
    """One broker for the whole run."""

    def __init__(self, broker: RabbitMQ) -> None:
        self.version = broker.version
        self._pid: int | None = getattr(broker, "pid", None)
        self._amqp = broker.url.rpartition("@")[2].partition("/")[0]
        self._login = urlsplit(broker.url).netloc.rpartition("@")[0] or "guest:guest"
        self._api = Management(broker, timeout=HTTP_SECONDS)
        # It comes up a moment after AMQP does.
        if not wait_until(self._api.answers, within=15):
            raise NoBroker(tried=f"its HTTP API at {self._api.base} does not answer")

    def cpu_seconds(self) -> float:
        """What it has used so far; 0 if it runs where we cannot see it."""
        return machine.cpu_seconds(self._pid) if self._pid else 0.0

    def come_to_rest(self) -> None:
        """Wait until it has done what it does behind a confirm, or for ten seconds."""

        def rests() -> bool:
            before = self.cpu_seconds()
            time.sleep(REST_SECONDS)  # noqa: TID251 - the length of the look
            return self.cpu_seconds() - before < REST_SHARE * REST_SECONDS

        wait_until(rests, within=10)

    def memory_mb(self) -> float:
        """What Erlang has in use, freed memory that is kept for later not counted."""
        (node,) = self._api.call("GET", "/nodes?columns=name")
        return float(self._api.call("GET", f"/nodes/{quote(node['name'])}/memory")["memory"]["total"]["erlang"]) / 1e6

    @contextmanager
    def vhost(self) -> Iterator[Vhost]:
        """Make a virtual host, and delete it with all queues afterwards."""
        name = f"bench-{secrets.token_hex(3)}"
        self._api.call("PUT", f"/vhosts/{name}", {})
        user = unquote(self._login.partition(":")[0])
        self._api.call("PUT", f"/permissions/{name}/{user}", {"configure": ".*", "write": ".*", "read": ".*"})
        try:
            yield Vhost(f"amqp://{self._login}@{self._amqp}/{name}", name, self)
        finally:
            self._api.call("DELETE", f"/vhosts/{name}")

    def queues(self, vhost: str) -> list[str]:
        """Names of all queues of a virtual host."""
        found = self._api.call("GET", f"/queues/{vhost}?columns=name&disable_stats=true&enable_queue_totals=true")
        return sorted(each["name"] for each in found)

    def purge(self, vhost: str, queue: str) -> None:
        """Drop the ready messages of a queue."""
        self._api.call("DELETE", f"/queues/{vhost}/{quote(queue, safe='')}/contents")


class Vhost:
    """Where one measurement has the broker to itself."""

    def __init__(self, url: str, name: str, rabbit: Rabbit) -> None:
        self.url, self._name, self.rabbit = url, name, rabbit

    def queues(self) -> list[str]:
        """Names of all its queues."""
        return self.rabbit.queues(self._name)

    def empty(self) -> None:
        """Drop the ready messages of all queues that are not exclusive."""
        for queue in self.queues():
            if "pidbox" not in queue:
                self.rabbit.purge(self._name, queue)
