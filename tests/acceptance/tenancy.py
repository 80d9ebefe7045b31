"""A virtual host of a test's own, and users of it."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from kombu.connection import Connection

from celery_dlx_retry.broker.connection import addresses

if TYPE_CHECKING:
    from celery_dlx_retry.testing import RabbitMQ


class Tenancy:
    """Its names need not be the test's alone: nobody else is there."""

    def __init__(self, broker: RabbitMQ, management: Any, vhost: str) -> None:
        self.vhost, self._management = vhost, management
        self._users: list[str] = []
        (place,) = addresses(Connection(broker.url))
        self._address = f"{place.host}:{place.port}/{quote(vhost, safe='')}"
        self._quoted = quote(vhost, safe="")
        management.call("PUT", f"/vhosts/{self._quoted}", {})
        self._login = urlsplit(broker.url).netloc.rpartition("@")[0] or "guest:guest"
        self.allow(self._login.partition(":")[0], ".*", ".*", ".*")

    @property
    def url(self) -> str:
        """Of a user who may do everything."""
        return f"amqp://{self._login}@{self._address}"

    def user(self, *permissions: str, tags: str = "") -> str:
        """The URL of a new user who may configure, write and read what these patterns match, here and nowhere else."""
        name = f"u{secrets.token_hex(4)}"
        self._management.call("PUT", f"/users/{name}", {"password": "secret", "tags": tags})
        self._users.append(name)
        self.allow(name, *permissions)
        return f"amqp://{name}:secret@{self._address}"

    def allow(self, name: str, configure: str, write: str, read: str) -> None:
        permissions = {"configure": configure, "write": write, "read": read}
        self._management.call("PUT", f"/permissions/{self._quoted}/{name}", permissions)

    def close(self) -> None:
        self._management.call("DELETE", f"/vhosts/{self._quoted}")
        for name in self._users:
            self._management.call("DELETE", f"/users/{name}")
