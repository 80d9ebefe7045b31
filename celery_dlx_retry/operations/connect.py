"""Connect to the broker of an app and to its HTTP API; raise our own errors if that fails."""

from __future__ import annotations

from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from amqp.exceptions import AMQPError
from kombu.exceptions import KombuError

from celery_dlx_retry.app.task_options import check_urls
from celery_dlx_retry.broker.connection import shown
from celery_dlx_retry.broker.management import Management, management_of
from celery_dlx_retry.errors import BadBrokerURL, NoManagement
from celery_dlx_retry.operations.operation_errors import BrokerUnavailable, NeedsRabbitMQ
from celery_dlx_retry.values.broker_urls import AMQP_SCHEMES, scheme_of, urls_in
from celery_dlx_retry.values.escaping import printable

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from celery import Celery
    from kombu.connection import Connection


Item = TypeVar("Item")
# The server on the broker's port may send any text.
_LONGEST_TEXT = 500


@contextmanager
def broker_errors(app: Celery) -> Iterator[None]:
    """Raise BrokerUnavailable in place of an error of py-amqp, Kombu or the network."""
    try:
        yield
    except (AMQPError, KombuError, OSError) as exc:
        problem = printable((str(exc) or type(exc).__name__)[:_LONGEST_TEXT]).rstrip(".")
        raise BrokerUnavailable(broker=shown(app.connection_for_read()), problem=problem) from exc


@contextmanager
def broker_iterator(app: Celery, generator: Generator[Item, None, None]) -> Iterator[Iterator[Item]]:
    """Iterate over what a generator of ``broker/`` yields; close it at the end.

    Errors of the broker in the generator become BrokerUnavailable. Errors of the loop's body stay as they are.
    """

    def items() -> Iterator[Item]:
        while True:
            with broker_errors(app):
                try:
                    item = next(generator)
                except StopIteration:
                    return
            yield item

    with closing(generator):
        yield items()


def connection_of(app: Celery) -> Connection:
    """Return a connection that is not open yet.

    It tries the hosts of a failover URL in turn; Kombu's "shuffle" may try one twice and another never.
    """
    return app.connection_for_read(failover_strategy="round-robin")


def connect(connection: Connection) -> None:
    """Open the connection; try each host of a failover URL once."""
    connection.ensure_connection(max_retries=max(0, len(connection.alt) - 1), interval_start=0, interval_step=0)


def find_management(connection: Connection, url: str | None = None) -> tuple[Management | None, str]:
    """Return the HTTP API, or None and the reason; raise NoManagement if the API at ``url`` does not answer."""
    try:
        management = management_of(connection, url)
        management.version()
    except NoManagement as exc:
        if url is not None:
            raise
        return None, str(exc)
    return management, ""


def require_rabbitmq(app: Celery) -> None:
    """Raise NeedsRabbitMQ if the app uses another broker, BadBrokerURL if its URL cannot be read."""
    require_readable_url(app)
    if not is_rabbitmq(app):
        raise NeedsRabbitMQ(transport=transport_of(app))


def require_readable_url(app: Celery) -> None:
    """Raise BadBrokerURL if the broker's URL cannot be read. The error shows no part of the URL."""
    check_urls(app)
    # If Kombu can make a connection, the transport has the name of a library and not of a scheme.
    if transport_of(app).lower() in AMQP_SCHEMES:
        raise BadBrokerURL(which="The broker's URL")


def is_rabbitmq(app: Celery) -> bool:
    """Whether the app speaks AMQP to its broker. Unlike a worker, this does not warn if it does not."""
    return transport_of(app) == "py-amqp"


def transport_of(app: Celery) -> str:
    """Return the name of the transport's library, or the scheme of the URL if the library is not installed."""
    conf: Any = app.conf
    try:
        return str(app.connection_for_read().transport.driver_name)
    except Exception:  # noqa: BLE001 - each transport fails in another way without its library
        return next(map(scheme_of, urls_in(conf.broker_read_url)), "")
