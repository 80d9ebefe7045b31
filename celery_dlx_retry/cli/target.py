"""What a command is about: an app, its work queues, their broker, and the HTTP API if it answers."""

from __future__ import annotations

from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

import click
from celery.exceptions import ImproperlyConfigured

from celery_dlx_retry.broker.lanes import standing_lanes
from celery_dlx_retry.broker.management import management_of
from celery_dlx_retry.broker.queues import declared_kind, found_kind, work_queue
from celery_dlx_retry.cli.output import one_sentence
from celery_dlx_retry.errors import NoManagement
from celery_dlx_retry.worker.runtime import runtime_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery import Celery
    from kombu.connection import Connection
    from kombu.entity import Queue

    from celery_dlx_retry.broker.management import Management
    from celery_dlx_retry.core.settings import QueueType
    from celery_dlx_retry.core.topology import Lane, Topology, WorkQueue

queues_option = click.option(
    "--queues",
    "-Q",
    "queue_names",
    metavar="NAMES",
    default=None,
    help="Work queues, separated by commas, as for `celery worker`; by default all of the app's.",
)
management_option = click.option(
    "--management-url",
    metavar="URL",
    envvar="DLX_MANAGEMENT_URL",
    default=None,
    help="RabbitMQ's HTTP API, if not at the usual port of the broker's host.  [env var: DLX_MANAGEMENT_URL]",
)
ladder_option = click.option(
    "--ladder", is_flag=True, help="Also the ladder, which is otherwise declared by the first countdown or eta."
)


class Target:
    """Made once per command, with an open connection."""

    def __init__(self, app: Celery, connection: Connection, queues: list[Queue]) -> None:
        self.app, self.connection, self.queues = app, connection, queues
        self.runtime = runtime_of(app)
        self.names = self.runtime.names
        self.management: Management | None = None
        #: Why there is none.
        self.no_management = ""

    @property
    def work_queues(self) -> list[WorkQueue]:
        """The queues that workers consume."""
        return [work_queue(queue) for queue in self.queues]

    @cached_property
    def types(self) -> dict[str, QueueType]:
        """The types that these queues really have."""
        return {queue.name: declared_kind(queue) or found_kind(self.connection, queue) for queue in self.queues}

    def plan(self, *, ladder: bool = False) -> Topology:
        """What must stand for them."""
        return self.runtime.plan(self.queues, ladder=ladder)

    def lanes(self) -> list[Lane]:
        """All lanes and rungs that exist under our prefix, announced or not."""
        return standing_lanes(
            self.connection, self.names, possible=self.runtime.wait_queues(), management=self.management
        )


@contextmanager
def targeting(ctx: click.Context, queue_names: str | None, management_url: str | None) -> Iterator[Target]:
    """Connect, find the HTTP API; whatever goes wrong is said in one sentence."""
    app = ctx.obj.app
    with one_sentence():
        queues = queues_of(app, queue_names)
        with app.connection_for_read() as connection:
            connect(connection)
            target = Target(app, connection, queues)
            target.management, target.no_management = _management(connection, management_url)
            yield target


def connect(connection: Connection) -> None:
    """Once over all hosts of a failover URL: an operator can try again."""
    connection.ensure_connection(max_retries=max(0, len(connection.alt) - 1), interval_start=0, interval_step=0)


def queues_of(app: Any, queue_names: str | None) -> list[Queue]:
    """The queues that a worker with this ``-Q`` would consume; all its tasks are loaded, too."""
    app.loader.import_default_modules()
    if not runtime_of(app).settings.require_rabbitmq:
        insist_on_rabbitmq(app)
    if queue_names:
        try:
            app.amqp.queues.select([name.strip() for name in queue_names.split(",") if name.strip()])
        except (KeyError, ImproperlyConfigured) as exc:
            raise click.UsageError(f"There is no queue {exc} in task_queues.") from exc
    return list(app.amqp.queues.consume_from.values())


def insist_on_rabbitmq(app: Any) -> None:
    """One sentence, if there is nothing that we could show."""
    if not is_rabbitmq(app):
        raise click.ClickException("The broker is not RabbitMQ: there are no lanes and no dead letters to see.")


def is_rabbitmq(app: Any) -> bool:
    """Whether the app speaks AMQP to its broker, without the warning that a worker gives."""
    return bool(app.connection_for_read().transport.driver_name == "py-amqp")


def _management(connection: Connection, url: str | None) -> tuple[Management | None, str]:
    try:
        management = management_of(connection, url)
        management.version()
    except NoManagement as exc:
        if url is not None:
            raise  # somebody said that it is there
        return None, str(exc)
    return management, ""


def note(text: str) -> None:
    """Something beside the result: on stderr, where it does not end up in a file."""
    click.echo(f"Note: {text}", err=True)
