"""RabbitMQ's HTTP management API, read only: what AMQP does not show."""

from __future__ import annotations

import base64
import socket
import ssl
import threading
import time
from contextlib import closing, contextmanager, suppress
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, unquote, urlencode, urlsplit

from celery_dlx_retry.errors import BadManagementURL, ClearTextManagementURL, NoManagement
from celery_dlx_retry.topology import management_answers as api_answers
from celery_dlx_retry.topology.rabbitmq_policies import BrokerPolicies
from celery_dlx_retry.values.broker_urls import bracketed, is_loopback, read_url

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

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
        host = self._parts.hostname or ""
        try:
            status, body = get(host, port, target, headers=self._headers, tls=self._tls, seconds=seconds)
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
    begun, timeout = time.monotonic(), min(seconds, _CONNECT_SECONDS)
    connection = (
        HTTPSConnection(host, port, timeout=timeout, context=tls)
        if tls
        else HTTPConnection(host, port, timeout=timeout)
    )
    with closing(connection):
        connection.connect()
        connection.sock.settimeout(seconds)
        with _shut_after(begun + seconds - time.monotonic(), connection.sock):
            connection.request("GET", target, headers=dict(headers))
            with connection.getresponse() as response:
                body = response.read(LARGEST_ANSWER + 1) if response.status == OK else b""
    if len(body) > LARGEST_ANSWER:
        raise AnswerTooLong
    return response.status, body


@contextmanager
def _shut_after(seconds: float, sock: socket.socket) -> Iterator[None]:
    """Shut the socket down after this time, and raise TimeoutError; a timeout of a socket begins again at each byte."""
    is_late = threading.Event()

    def shut() -> None:
        is_late.set()
        with suppress(OSError):
            socket.socket.shutdown(sock, socket.SHUT_RDWR)  # not that of an SSL socket, which another thread reads

    timer = threading.Timer(seconds, shut)
    timer.daemon = True
    timer.start()
    try:
        yield
    except (OSError, HTTPException):
        if not is_late.is_set():
            raise
    finally:
        timer.cancel()
    if is_late.is_set():
        raise TimeoutError
