"""RabbitMQ's HTTP management API, read only: what AMQP does not show."""

from __future__ import annotations

import base64
import json
import ssl
from http.client import HTTPException
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError
from urllib.parse import SplitResult, quote, unquote, urlencode, urlsplit
from urllib.request import HTTPSHandler, ProxyHandler, Request, build_opener

from celery_dlx_retry.core.broker_policies import BrokerPolicies
from celery_dlx_retry.core.topology import BindingSpec
from celery_dlx_retry.errors import BadManagementURL, NoManagement

if TYPE_CHECKING:
    from kombu.connection import Connection

_PORT, _TLS_PORT = 15672, 15671
_TIMEOUT_SECONDS = 5.0
_REFUSED = {401, 403}
_COLUMNS = (
    "name", "type", "durable", "auto_delete", "exclusive", "arguments", "consumers", "messages", "messages_ready",
    "messages_unacknowledged", "head_message_timestamp",
    "message_stats.publish_details.rate", "message_stats.deliver_get_details.rate",
)  # fmt: skip


class Management:
    """One virtual host, seen over HTTP."""

    def __init__(self, *, url: str, user: str, password: str, vhost: str, tls: ssl.SSLContext | None = None) -> None:
        self.url = url
        self.user = user
        self.vhost = vhost
        login = base64.b64encode(f"{user}:{password}".encode()).decode()
        self._headers = {"Authorization": f"Basic {login}", "Accept": "application/json"}
        # No proxy of the environment: the broker is as near as its AMQP port.
        self._opener = build_opener(ProxyHandler({}), HTTPSHandler(context=tls))

    def version(self) -> str:
        """The broker's; the cheapest question that shows whether anybody answers us."""
        return str(self._get("/overview", columns="rabbitmq_version").get("rabbitmq_version", ""))

    def queues(self) -> dict[str, dict[str, Any]]:
        """Every queue of the virtual host by its name; counts are some seconds old."""
        found = self._get(f"/queues/{self._vhost}", columns=",".join(_COLUMNS))
        return {queue["name"]: queue for queue in found}

    def bindings(self) -> set[BindingSpec]:
        """All from an exchange to a queue."""
        columns = "source,destination,destination_type,routing_key,arguments"
        found = self._get(f"/bindings/{self._vhost}", columns=columns)
        return {
            BindingSpec(
                exchange=it["source"],
                queue=it["destination"],
                routing_key=it["routing_key"],
                arguments=tuple(sorted((str(key), _plain(value)) for key, value in it["arguments"].items())),
            )
            for it in found
            if it["destination_type"] == "queue"
        }

    def policies(self) -> BrokerPolicies:
        """The policies of the virtual host, the operator's too as far as we may see them."""
        try:
            operator = self._get(f"/operator-policies/{self._vhost}")
        except NoManagement:
            operator = []
        return BrokerPolicies(user=tuple(self._get(f"/policies/{self._vhost}")), operator=tuple(operator))

    @property
    def _vhost(self) -> str:
        return quote(self.vhost, safe="")

    def _get(self, path: str, **parameters: str) -> Any:
        query = f"?{urlencode(parameters)}" if parameters else ""
        request = Request(f"{self.url}/api{path}{query}", headers=self._headers)  # noqa: S310 - the scheme is checked
        try:
            with self._opener.open(request, timeout=_TIMEOUT_SECONDS) as response:
                return json.loads(response.read())
        except HTTPError as exc:
            with exc:
                problem = f"the user {self.user!r} may not use it" if exc.code in _REFUSED else f"it answers {exc.code}"
            raise NoManagement(url=self.url, problem=problem) from exc
        except (OSError, ValueError, HTTPException) as exc:  # nobody there, no JSON, no HTTP
            raise NoManagement(url=self.url, problem=str(getattr(exc, "reason", exc))) from exc


def management_of(connection: Connection, url: str | None) -> Management:
    """The API at this URL, or where a RabbitMQ has it that is at the other end of this connection.

    Credentials in the URL come before those of the connection; they are never shown. Over https, whom to trust and
    which certificate to show is what ``broker_use_ssl`` says for AMQP.
    """
    tls = _tls(connection.ssl) if isinstance(connection.ssl, dict) else None
    user, password = connection.userid or "guest", connection.password or "guest"
    vhost = connection.virtual_host or "/"
    if url is None:
        is_tls = connection.ssl or connection.transport_cls == "amqps"
        scheme, port = ("https", _TLS_PORT) if is_tls else ("http", _PORT)
        host = connection.hostname or "localhost"
        url = f"{scheme}://{_bracketed(host)}:{port}"
        return Management(url=url, user=user, password=password, vhost=vhost, tls=tls)
    parts = _sound(url)
    shown = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}"
    if parts.username:
        user, password = unquote(parts.username), unquote(parts.password or "")
    return Management(url=shown, user=user, password=password, vhost=vhost, tls=tls)


def _tls(options: dict[str, Any]) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=options.get("ca_certs"))
    if options.get("certfile"):
        context.load_cert_chain(options["certfile"], options.get("keyfile"))
    if options.get("cert_reqs") == ssl.CERT_NONE:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _sound(url: str) -> SplitResult:
    """Its parts. Of one that is not sound nothing is shown: any part of it may be one of the password."""
    try:
        parts = urlsplit(url)
        is_sound = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number, half an IPv6 address
        is_sound = False
    if not is_sound or "@" in parts.path or parts.query or parts.fragment or not url.isprintable() or " " in url:
        raise BadManagementURL
    return parts


def _plain(value: Any) -> str | int | bool:
    return value if isinstance(value, (str, int)) else json.dumps(value)


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
