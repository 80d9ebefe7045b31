"""RabbitMQ's HTTP management API, read only: what AMQP does not show."""

from __future__ import annotations

import base64
import io
import socket
import ssl
import time
from http.client import HTTPConnection, HTTPException, HTTPResponse
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar, cast
from urllib.parse import quote, unquote, urlencode, urlsplit

from celery_dlx_retry.errors import BadManagementURL, ClearTextManagementURL, NoManagement
from celery_dlx_retry.topology import management_answers as api_answers
from celery_dlx_retry.topology.rabbitmq_policies import BrokerPolicies
from celery_dlx_retry.values.broker_urls import bracketed, is_loopback, read_url

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kombu.connection import Connection

    from celery_dlx_retry.topology.management_answers import Node
    from celery_dlx_retry.topology.specs import BindingSpec


T = TypeVar("T")

_PORT, _TLS_PORT = 15672, 15671
_DEFAULT_PORTS = {"http": 80, "https": 443}
# The first question is cheap: an API that needs longer for it is down. The list of many queues takes seconds.
_FIRST_SECONDS = 5.0
_SECONDS = 30.0
_REFUSED = {401, 403}
_REDIRECTS = range(300, 400)

#: About the length of a list of 70,000 queues.
LARGEST_ANSWER = 32 * 2**20
OK = 200

_CONNECT_SECONDS = 5.0
_CHUNK = 2**16


class Management:
    """One virtual host, seen over HTTP. The server may be hostile: its redirects are not followed."""

    def __init__(self, *, url: str, user: str, password: str, vhost: str, tls: ssl.SSLContext | None = None) -> None:
        self.url = url
        self.user = user
        self.vhost = vhost
        login = base64.b64encode(f"{user}:{password}".encode()).decode()
        self._headers = {"Authorization": f"Basic {login}", "Accept": "application/json", "Connection": "close"}
        self._parts = urlsplit(url)
        is_tls = self._parts.scheme == "https"
        self._tls = (tls or ssl.create_default_context()) if is_tls else None

    def version(self) -> str:
        """Return the broker's version; the cheapest question, to see whether the API answers us."""
        return self._ask("/overview", api_answers.version, columns=["rabbitmq_version"])

    def queues(self) -> dict[str, dict[str, Any]]:
        """Return every queue of the virtual host by its name; counts are some seconds old."""
        return self._ask(f"/queues/{self._vhost}", api_answers.queues, columns=api_answers.QUEUE_COLUMNS)

    def published(self, *, minutes: int) -> dict[str, int]:
        """Return how many messages were published to each queue within so many minutes, as far as RabbitMQ counts."""
        columns = ("name", "message_stats.publish_details.samples")
        window = {"msg_rates_age": 60 * minutes, "msg_rates_incr": 60}
        return self._ask(f"/queues/{self._vhost}", api_answers.published, columns=columns, more=window)

    def nodes(self) -> tuple[Node, ...]:
        """Return the nodes of the cluster; none if this user may not see them."""
        return self._ask("/nodes", api_answers.nodes, columns=api_answers.NODE_COLUMNS, if_refused=())

    def bindings(self) -> set[BindingSpec]:
        """Return all bindings of queues to exchanges."""
        return self._ask(f"/bindings/{self._vhost}", api_answers.bindings, columns=api_answers.BINDING_COLUMNS)

    def policies(self) -> BrokerPolicies:
        """Return the policies of the virtual host, and the operator policies if this user may see them."""
        return BrokerPolicies(
            user=self._ask(f"/policies/{self._vhost}", api_answers.policies),
            operator=self._ask(f"/operator-policies/{self._vhost}", api_answers.policies, if_refused=()),
        )

    @property
    def _vhost(self) -> str:
        return quote(self.vhost, safe="")

    def _ask(
        self,
        path: str,
        read: Callable[[Any], T],
        *,
        columns: Sequence[str] = (),
        more: Mapping[str, int] = MappingProxyType({}),
        if_refused: T | None = None,
    ) -> T:
        """Return what ``read`` makes of the answer. Every problem raises NoManagement, with a text of ours."""
        seconds = _FIRST_SECONDS if read is api_answers.version else _SECONDS
        query = f"?{urlencode({'columns': ','.join(columns), **more})}" if columns else ""
        target = f"{self._parts.path}/api{path}{query}"
        port = self._parts.port or _DEFAULT_PORTS[self._parts.scheme]
        try:
            status, body = get(
                self._parts.hostname or "", port, target, headers=self._headers, tls=self._tls, seconds=seconds
            )
        except TimeoutError as exc:
            raise self._problem(f"it did not answer within {seconds:g} s") from exc
        except AnswerTooLong as exc:
            raise self._problem(f"its answer is longer than {LARGEST_ANSWER >> 20} MiB") from exc
        except OSError as exc:
            raise self._problem(exc.strerror or str(exc)) from exc
        except (ValueError, HTTPException) as exc:
            raise self._problem("it does not speak HTTP") from exc
        if status in _REFUSED and if_refused is not None:
            return if_refused
        if status != OK:
            raise self._problem(self._refusal(status))
        try:
            return read(api_answers.parsed(body))
        except ValueError as exc:
            raise self._problem(f"its answer to /api{path} {exc}") from exc

    def _refusal(self, status: int) -> str:
        if status in _REFUSED:
            return f"the user {self.user!r} may not use it"
        if status in _REDIRECTS:
            return f"it answers {status}, and no redirect is followed: name the URL that it leads to"
        return f"it answers {status}"

    def _problem(self, problem: str) -> NoManagement:
        return NoManagement(url=self.url, problem=problem)


def management_of(connection: Connection, url: str | None) -> Management:
    """Return the API at this URL, or at the usual port of the broker's host.

    This is the whole rule for credentials. They go

    - to the URL that you name, if it has credentials, and these are sent;
    - to the URL that you name without any: the broker's are sent, but not over http to another machine if AMQP is
      encrypted;
    - to the broker's host, if you name no URL: over https if AMQP is encrypted, over http if it is not.

    Over https, ``broker_use_ssl`` decides whom to trust and which certificate to show, as for AMQP.
    """
    tls = _tls(connection.ssl) if isinstance(connection.ssl, dict) else None
    user, password = connection.userid or "guest", connection.password or "guest"
    vhost = connection.virtual_host or "/"
    is_encrypted = bool(connection.ssl) or connection.transport_cls == "amqps"
    if url is None:
        scheme, port = ("https", _TLS_PORT) if is_encrypted else ("http", _PORT)
        named = f"{scheme}://{bracketed(connection.hostname or 'localhost')}:{port}"
    else:
        parts = read_url(url)
        if (
            parts is None
            or parts.scheme not in _DEFAULT_PORTS
            or not parts.hostname
            or parts.query
            or " " in parts.path
            or (parts.password and not parts.username)
        ):
            raise BadManagementURL
        named = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}"
        if parts.username:
            user, password = unquote(parts.username), unquote(parts.password or "")
        elif is_encrypted and parts.scheme == "http" and not is_loopback(parts.hostname):
            raise ClearTextManagementURL(url=named)
    # Kombu takes a function as well, for passwords that expire.
    password = password() if callable(password) else password
    return Management(url=named, user=user, password=password, vhost=vhost, tls=tls)


def _tls(options: dict[str, Any]) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=options.get("ca_certs"))
    if options.get("certfile"):
        context.load_cert_chain(options["certfile"], options.get("keyfile"))
    if options.get("cert_reqs") == ssl.CERT_NONE:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


class AnswerTooLong(Exception):
    """The body is longer than LARGEST_ANSWER."""


def get(  # noqa: PLR0913 - where, what, as whom, how long
    host: str, port: int, target: str, *, headers: Mapping[str, str], tls: ssl.SSLContext | None, seconds: float
) -> tuple[int, bytes]:
    """Return the status, and the body if the status is 200.

    Raise OSError, HTTPException, ValueError or AnswerTooLong. After ``seconds`` it raises TimeoutError, also if the
    server sends a byte now and then. Only the resolver of host names has its own limit.
    """
    connection = _Connection(host, port, tls=tls, deadline=_Deadline(seconds))
    try:
        connection.request("GET", target, headers=dict(headers))
        response = connection.getresponse()
        return response.status, _body(response) if response.status == OK else b""
    finally:
        connection.end()


def _body(response: HTTPResponse) -> bytes:
    body = bytearray()
    while chunk := response.read(_CHUNK):
        body += chunk
        if len(body) > LARGEST_ANSWER:
            raise AnswerTooLong
    return bytes(body)


class _Deadline:
    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    def left(self) -> float:
        if (left := self._end - time.monotonic()) <= 0:
            raise TimeoutError
        return left


class _Connection(HTTPConnection):
    """A connection of http.client whose reads and writes end at the deadline."""

    def __init__(self, host: str, port: int, *, tls: ssl.SSLContext | None, deadline: _Deadline) -> None:
        super().__init__(host, port)
        self._tls, self._deadline = tls, deadline
        self._open: socket.socket | None = None

    def connect(self) -> None:
        """Try each address of the host."""
        seconds = min(self._deadline.left(), _CONNECT_SECONDS)
        self._open = socket.create_connection((self.host, self.port), timeout=seconds)
        if self._tls is not None:
            self._open.settimeout(self._deadline.left())
            self._open = self._tls.wrap_socket(self._open, server_hostname=self.host)
        self.sock = cast("socket.socket", _TimedSocket(self._open, self._deadline))

    def end(self) -> None:
        """Close the socket; close() of the base class leaves it to the response."""
        self.close()
        if self._open is not None:
            self._open.close()


class _TimedSocket(io.RawIOBase):
    """The part of a socket that http.client uses."""

    def __init__(self, sock: socket.socket, deadline: _Deadline) -> None:
        super().__init__()
        self._sock, self._deadline = sock, deadline

    def sendall(self, data: bytes) -> None:
        self._sock.settimeout(self._deadline.left())
        self._sock.sendall(data)

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._sock.settimeout(self._deadline.left())
        return self._sock.recv_into(buffer)

    def close(self) -> None:
        """Do nothing: the response may still read."""
