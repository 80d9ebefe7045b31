"""Read URLs of brokers, and show them without passwords.

In a malformed URL the password may be anywhere: ``user:secret@host`` has no host name, and ``amqp://user:12/34@host``
reads as host ``user``, port 12. So we show no part of such a URL, and no error that quotes one.
"""

from __future__ import annotations

import ipaddress
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, parse_qsl, urlsplit

from celery_dlx_retry.errors import BadBrokerURL

if TYPE_CHECKING:
    from collections.abc import Iterable

#: The text that we show in place of a URL that cannot be read.
UNREADABLE = "a URL that cannot be read"
#: The schemes of RabbitMQ.
AMQP_SCHEMES = frozenset({"amqp", "amqps", "pyamqp"})

_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*", re.ASCII | re.IGNORECASE)
_HOST = re.compile(r"[\w.-]+")
_SECONDS = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?", re.ASCII)
_LOGIN_METHODS = frozenset({"AMQPLAIN", "PLAIN", "EXTERNAL", "GSSAPI"})
_IPV6 = re.compile(r"[0-9a-f:.]+(%[\w.-]+)?", re.ASCII | re.IGNORECASE)


def read_url(url: str) -> SplitResult | None:
    """Return the parts of a URL, or None if one of them may belong to the password."""
    scheme, separator, rest = url.partition("://")
    # A "/", "?" or "#" in a password ends the host too early; then the "@" is behind it.
    authority = re.split(r"[/?#]", rest, maxsplit=1)[0]
    tail = rest[len(authority) :]
    if not (separator and _SCHEME.fullmatch(scheme) and tail.isprintable()) or "@" in tail or "#" in tail:
        return None
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises ValueError, which quotes it
    except ValueError:
        return None
    host = authority.rpartition("@")[2]
    return parts if not host or is_host(parts.hostname or "") else None


def is_host(text: str) -> bool:
    """Return whether the whole text is a host name or an address."""
    return bool(_HOST.fullmatch(text) or _IPV6.fullmatch(text))


def is_loopback(host: str) -> bool:
    """Return whether this host name or address is the local machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def bracketed(host: str) -> str:
    """Return a host as a URL writes it: IPv6 addresses in brackets."""
    return f"[{host}]" if ":" in host else host


def scheme_of(url: str) -> str:
    """Return the scheme of a URL; empty if it has none."""
    scheme, separator, _ = url.partition("://")
    return scheme if separator and _SCHEME.fullmatch(scheme) else ""


def shown_url(url: Any) -> str:
    """Return a URL, or several, without credentials and query; UNREADABLE if one of them cannot be read."""
    parts = [_shown(it) for it in urls_in(url)]
    # A ";" in a password splits one URL into several, and some of them may look sound.
    return UNREADABLE if UNREADABLE in parts else "; ".join(parts)


def urls_in(setting: Any) -> list[str]:
    """Return the URLs of ``broker_url``: one, several with semicolons between them, or a list."""
    values: Iterable[Any] = setting if isinstance(setting, (list, tuple)) else [setting]
    return [url for value in values if value for url in str(value).split(";") if url]


def check_broker_urls(setting: Any) -> None:
    """Raise BadBrokerURL if one of these URLs is RabbitMQ's and one of them cannot be read.

    A URL of another kind of broker beside one of RabbitMQ is refused, too: Kombu reads it only when it fails over, and
    then raises an error that quotes it.
    """
    urls = urls_in(setting)
    is_rabbitmq = any(map(_is_for_rabbitmq, urls))
    for number, url in enumerate(urls, 1):
        if is_rabbitmq and not (_is_for_rabbitmq(url) and _is_readable_broker(url)):
            raise BadBrokerURL(which=f"Broker URL {number} of {len(urls)}" if len(urls) > 1 else "The broker's URL")


def _is_for_rabbitmq(url: str) -> bool:
    """Return whether Kombu uses its RabbitMQ transport: also without a scheme, and for ``amqp+…``."""
    scheme = scheme_of(url).lower()
    return not scheme or scheme.partition("+")[0] in AMQP_SCHEMES


def _is_readable_broker(url: str) -> bool:
    scheme = scheme_of(url).lower()
    if not scheme:
        return bool(_HOST.fullmatch(url))  # Kombu takes a text without a scheme for a host name
    parts = read_url(url) if scheme in AMQP_SCHEMES else None
    return parts is not None and all(_is_option(*option) for option in parse_qsl(parts.query))


def _is_option(name: str, value: str) -> bool:
    """Return whether Kombu accepts this option. It reads it only when it fails over, and its error quotes it."""
    if name in {"heartbeat", "connect_timeout"}:
        return bool(_SECONDS.fullmatch(value))
    return name != "login_method" or value in _LOGIN_METHODS


def _shown(url: str) -> str:
    if _HOST.fullmatch(url):
        return url
    parts = read_url(url)
    if parts is None:
        return UNREADABLE
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
