"""Where a connection leads: what may be said of a broker URL, and compared with another."""

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
        # A password with a "/" makes the rest of its URL the virtual host; without a scheme all of it is the host.
        if not is_host(self.host) or "@" in self.vhost:
            return UNREADABLE
        return f"{bracketed(self.host)}:{self.port}, virtual host {self.vhost!r}"


def addresses(connection: Connection) -> list[BrokerAddress]:
    """All that it may connect to: one, unless its URL names hosts to fail over to."""
    default = connection.transport.default_connection_params
    found = [(connection.hostname, connection.port, connection.virtual_host)]
    found += map(_parts, connection.alt)
    named = [
        BrokerAddress(
            host=str(host or default.get("hostname")),
            port=int(port or default.get("port") or 0),
            vhost=str(vhost or default.get("virtual_host")),
        )
        for host, port, vhost in found
    ]
    return list(dict.fromkeys(named))


def shown(connection: Connection) -> str:
    """Return where a connection may lead, without credentials."""
    return " or ".join(dict.fromkeys(map(str, addresses(connection))))


def _parts(url: str) -> tuple[str | None, int | None, str | None]:
    if "://" not in url:
        return url, None, None  # Kombu takes it for a host name
    try:
        parts = url_to_parts(url)
    except ValueError:  # it quotes a part of the URL
        return UNREADABLE, None, None
    return parts.hostname, parts.port, parts.path
