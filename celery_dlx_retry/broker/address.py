"""The address of a broker, without credentials: to show it, and to compare it with another."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kombu.utils.url import url_to_parts

from celery_dlx_retry.values.broker_urls import UNREADABLE, bracketed, is_host

if TYPE_CHECKING:
    from kombu.connection import Connection


class BrokerAddress(NamedTuple):
    """A virtual host of a broker; no credentials."""

    host: str
    port: int
    vhost: str

    def __str__(self) -> str:
        # If a password contains a "/", the rest of the URL becomes the virtual host; without a scheme, all is the host.
        if not is_host(self.host) or "@" in self.vhost:
            return UNREADABLE
        return f"{bracketed(self.host)}:{self.port}, virtual host {self.vhost!r}"


def addresses(connection: Connection) -> list[BrokerAddress]:
    """Return all addresses that a connection may use: one, unless its URL names hosts for failover."""
    default = connection.transport.default_connection_params
    urls = [(connection.hostname, connection.port, connection.virtual_host), *map(_parts, connection.alt)]
    every = (
        BrokerAddress(
            host=str(host or default.get("hostname")),
            port=int(port or default.get("port") or 0),
            vhost=str(vhost or default.get("virtual_host")),
        )
        for host, port, vhost in urls
    )
    return list(dict.fromkeys(every))


def shown(connection: Connection) -> str:
    """Return the addresses of a connection as text, without credentials."""
    return " or ".join(dict.fromkeys(map(str, addresses(connection))))


def _parts(url: str) -> tuple[str | None, int | None, str | None]:
    if "://" not in url:
        return url, None, None  # Kombu takes it for a host name
    try:
        parts = url_to_parts(url)
    except ValueError:  # its text quotes a part of the URL
        return UNREADABLE, None, None
    return parts.hostname, parts.port, parts.path
