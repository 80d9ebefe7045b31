"""Where a connection leads: what may be said of a broker URL, and compared with another."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kombu.utils.url import url_to_parts

if TYPE_CHECKING:
    from kombu.connection import Connection


class Place(NamedTuple):
    """A virtual host of a broker; no credentials."""

    host: str
    port: int
    vhost: str

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}, virtual host {self.vhost!r}"


def places(connection: Connection) -> list[Place]:
    """All that it may connect to: one, unless its URL names hosts to fail over to."""
    default = connection.transport.default_connection_params
    found = [(connection.hostname, connection.port, connection.virtual_host)]
    found += [(parts.hostname, parts.port, parts.path) for parts in map(url_to_parts, connection.alt)]
    named = [
        Place(
            host=str(host or default.get("hostname")),
            port=int(port or default.get("port") or 0),
            vhost=str(vhost or default.get("virtual_host")),
        )
        for host, port, vhost in found
    ]
    return list(dict.fromkeys(named))
