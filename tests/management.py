"""The one client of RabbitMQ's HTTP API for tests and benchmarks."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError
from urllib.parse import quote, unquote, urlsplit
from urllib.request import HTTPBasicAuthHandler, HTTPPasswordMgrWithPriorAuth, ProxyHandler, Request, build_opener

from kombu.utils.url import url_to_parts

if TYPE_CHECKING:
    from celery_dlx_retry.testing import RabbitMQ

GONE_OR_EXCLUSIVE = {404, 405}  # an exclusive queue goes with its connection


class Management:
    """The HTTP API of a RabbitMQ, as far as tests and benchmarks need it; never through a proxy."""

    def __init__(self, broker: RabbitMQ, *, timeout: float = 10.0) -> None:
        self._timeout = timeout
        parts = urlsplit(broker.management_url or "")
        self.base = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}/api"
        self._vhost = quote(url_to_parts(broker.url).path or "/", safe="")
        passwords = HTTPPasswordMgrWithPriorAuth()
        user, password = unquote(parts.username or ""), unquote(parts.password or "")
        passwords.add_password(None, self.base, user, password, is_authenticated=True)
        self._opener = build_opener(ProxyHandler({}), HTTPBasicAuthHandler(passwords))

    def answers(self) -> bool:
        """Return whether it takes our login."""
        try:
            self.call("GET", "/whoami")
        except OSError:  # URLError and HTTPError are
            return False
        return True

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """Return what it answers."""
        data = None if body is None else json.dumps(body).encode()
        request = Request(f"{self.base}{path}", method=method, data=data)  # noqa: S310 - http to a test's broker
        request.add_header("Content-Type", "application/json")
        with self._opener.open(request, timeout=self._timeout) as response:
            return json.loads(response.read() or "null")

    def names(self, kind: str) -> list[str]:
        """Names of all "queues" or "exchanges" in the broker's virtual host."""
        found = self.call("GET", f"/{kind}/{self._vhost}?columns=name&disable_stats=true&enable_queue_totals=true")
        return [one["name"] for one in found]

    def delete(self, kind: str, name: str) -> None:
        """Delete a queue or an exchange, if it exists."""
        try:
            self.call("DELETE", f"/{kind}/{self._vhost}/{quote(name, safe='')}")
        except HTTPError as exc:
            if exc.code not in GONE_OR_EXCLUSIVE:
                raise

    def delete_all(self, part: str) -> None:
        """Delete every queue and exchange with this in its name."""
        for kind in ("queues", "exchanges"):
            for name in self.names(kind):
                if part in name:
                    self.delete(kind, name)
