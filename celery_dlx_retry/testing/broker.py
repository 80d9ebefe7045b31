"""A RabbitMQ as tests use it: a given one, or one that was started for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from amqp.exceptions import AMQPError
from kombu.connection import Connection

from celery_dlx_retry.errors import DLXError
from celery_dlx_retry.values.broker_urls import shown_url

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

# What a quorum lane gave to a work queue that was going down it gives again after three minutes; here sooner.
RESEND_SOON = "-rabbit dead_letter_worker_publisher_confirm_timeout 10000"
START_SECONDS = 60.0


class NotOurs(DLXError):
    """``action``, ``url``."""

    sentence = (
        "{action}() is not for the RabbitMQ at {url}: it was given, so tests use it and do not control it. "
        "Unset DLX_TEST_BROKER_URL to have one that tests may stop."
    )


class CommandFailed(DLXError):
    """``command``, ``output``."""

    sentence = "{command} failed: {output}"


class RabbitMQ:
    """A RabbitMQ that was given. You can use it, but not stop it. Brokers that are started here are subclasses.

    ``url`` is its AMQP URL and ``management_url`` the URL of its HTTP API, if it has one. ``version`` is from the AMQP
    handshake. The end of the ``with`` block ends what was started, and removes its data.
    """

    origin: ClassVar[str] = "url"
    can_restart: ClassVar[bool] = False
    #: The URLs of the brokers in a ``with`` block: tests may send to these.
    in_use: ClassVar[list[str]] = []

    def __init__(self, url: str, *, management_url: str | None = None) -> None:
        self.url = url
        self.management_url = management_url
        self.version = ""

    def __repr__(self) -> str:
        return f"<RabbitMQ {self.version} {self.shown_url} from {self.origin}>"

    def __enter__(self) -> Self:
        self.in_use.append(self.url)
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self.in_use.remove(self.url)
        self.close()

    @property
    def shown_url(self) -> str:
        """The URL without its password."""
        return shown_url(self.url)

    def restart(self) -> None:
        """Stop cleanly and start again, with the same data and on the same port."""
        self.stop()
        self.start()

    def start(self) -> None:
        """Start after ``stop`` or ``kill`` and return once it answers; nothing happens if it runs."""
        raise NotOurs(action="start", url=self.shown_url)

    def stop(self) -> None:
        """Shut down cleanly; data and port stay."""
        raise NotOurs(action="stop", url=self.shown_url)

    def kill(self) -> None:
        """Crash: SIGKILL, and it stays down until ``start``."""
        raise NotOurs(action="kill", url=self.shown_url)

    def pause(self) -> None:
        """Freeze: connections stay open and get no answer."""
        raise NotOurs(action="pause", url=self.shown_url)

    def resume(self) -> None:
        """Go on after ``pause``; nothing happens if it is not paused."""
        raise NotOurs(action="resume", url=self.shown_url)

    def ctl(self, *args: str) -> str:  # noqa: ARG002 - for the subclasses
        """Run ``rabbitmqctl --quiet`` with these arguments against this node and return what it prints."""
        raise NotOurs(action="ctl", url=self.shown_url)

    def close(self) -> None:
        """End what was started for it."""

    def answers(self, *, within: float = 5.0) -> bool:
        """Return whether an AMQP connection can be opened; if so, set ``version``."""
        return not self.problem(within=within)

    def problem(self, *, within: float = 5.0) -> str:
        """Return why no AMQP connection can be opened; empty if one can."""
        with Connection(self.url, connect_timeout=within) as connection:
            try:
                opened = connection.transport.establish_connection()
            except (OSError, AMQPError) as exc:
                return str(exc) or type(exc).__name__
            self.version = str(opened.server_properties["version"])
            connection.transport.close_connection(opened)
        return ""
