"""Open a connection to the broker, drop it, and show its address without credentials."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from amqp.exceptions import AMQPError
from kombu.exceptions import KombuError, SerializationError, SerializerNotInstalled
from kombu.utils.url import url_to_parts

from celery_dlx_retry.broker.frames import end_reads_at_half_a_frame
from celery_dlx_retry.errors import Unreachable
from celery_dlx_retry.values.broker_urls import UNREADABLE, bracketed, is_host

if TYPE_CHECKING:
    from kombu.connection import Connection


BROKER_ERRORS = (AMQPError, KombuError, OSError)
# Also errors of Kombu, but faults of the message and not of the broker.
MESSAGE_ERRORS = (SerializationError, SerializerNotInstalled)


def open_connection(connection: Connection, *, timeout_ms: int, is_confirmed: bool = True) -> None:
    """Connect. With ``is_confirmed`` every publish waits for its confirm."""
    # py-amqp starts its timeout again after each frame, so heartbeats would postpone a confirm timeout without end
    # (test_heartbeats_do_not_put_off_the_confirm_timeout).
    connection.transport_options = {**connection.transport_options, "confirm_publish": is_confirmed, "heartbeat": 0}
    try:
        # Try each host of a failover URL once.
        connection.ensure_connection(max_retries=max(0, len(connection.alt) - 1), interval_start=0, interval_step=0)
        # Opening a channel and declaring have no timeout (test_a_frozen_broker_holds_nobody_up).
        connection.connection.transport.sock.settimeout(timeout_ms / 1000)
        end_reads_at_half_a_frame(connection.connection.transport)
    except BROKER_ERRORS as exc:
        raise Unreachable(problem=f"{shown(connection)}: {exc}") from exc


def drop(connection: Connection) -> None:
    """Close the socket at once."""
    # Not close(), which waits for an answer that a stuck broker does not give.
    with suppress(*BROKER_ERRORS):
        connection.collect()


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
