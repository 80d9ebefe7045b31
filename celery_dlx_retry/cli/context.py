"""What a command is about: an app, its work queues, their broker, and the HTTP API if it answers."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, get_args

import click
from celery.exceptions import ImproperlyConfigured

from celery_dlx_retry.app.context import context_of
from celery_dlx_retry.app.task_options import check_urls
from celery_dlx_retry.broker.lanes import existing_lanes
from celery_dlx_retry.broker.management import management_of
from celery_dlx_retry.broker.peek import counts
from celery_dlx_retry.broker.work_queues import declared_kind, found_kind, has_delayed_retry, work_queue
from celery_dlx_retry.cli.errors import one_sentence
from celery_dlx_retry.cli.output import echo
from celery_dlx_retry.cli.parameters import QUEUE_NAMES
from celery_dlx_retry.errors import BadBrokerURL, Forbidden, NoManagement
from celery_dlx_retry.settings import QueueType
from celery_dlx_retry.topology.broker_requirements import Server, problems
from celery_dlx_retry.topology.ladder import rungs
from celery_dlx_retry.topology.names import WorkQueue
from celery_dlx_retry.values.broker_urls import AMQP_SCHEMES, scheme_of, urls_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from celery import Celery
    from kombu.connection import Connection
    from kombu.entity import Queue

    from celery_dlx_retry.broker.management import Management
    from celery_dlx_retry.broker.queue_status import Role
    from celery_dlx_retry.topology.names import Lane, Names
    from celery_dlx_retry.topology.specs import Topology

queues_option = click.option(
    "--queues",
    "-Q",
    "queue_names",
    type=QUEUE_NAMES,
    metavar="NAMES",
    default=None,
    help="Work queues, separated by commas, as for `celery worker`; by default all of the app's.",
)
management_option = click.option(
    "--management-url",
    metavar="URL",
    envvar="DLX_MANAGEMENT_URL",
    default=None,
    help="RabbitMQ's HTTP API. By default port 15672 of the broker's host, or 15671 over https if AMQP is encrypted. "
    "Without credentials in it, those of the broker are sent.  [env var: DLX_MANAGEMENT_URL]",
)
ladder_option = click.option(
    "--ladder", is_flag=True, help="Also the ladder, which is otherwise declared by the first countdown or eta."
)


_NAMELESS = "celery_dlx_retry.nameless"


class Target:
    """Made once per command, with an open connection."""

    def __init__(self, app: Celery, connection: Connection, queues: list[Queue]) -> None:
        self.app, self.connection, self.queues = app, connection, queues
        self.context = context_of(app)
        self.names = self.context.names
        self.management: Management | None = None
        #: Why there is none.
        self.no_management = ""

    @property
    def work_queues(self) -> list[WorkQueue]:
        """The queues that workers consume."""
        return [work_queue(queue) for queue in self.queues]

    @cached_property
    def types(self) -> dict[str, QueueType | None]:
        """The types that these queues really have; None if nobody tells us."""
        told = self.management.queues() if self.management else {}
        return {
            queue.name: kind_told(told, queue.name)
            if queue.name in told
            else declared_kind(queue) or found_kind(self.connection, queue)
            for queue in self.queues
        }

    @cached_property
    def has_ladder(self) -> bool:
        """Whether a process has made the ladder. This looks for two rungs: an operator may have deleted one."""
        whole = rungs(self.names, self.context.ladder)
        with suppress(Forbidden):  # a user who may not look finds no difference
            return bool(counts(self.connection, [whole.queues[0].name, whole.queues[-1].name]))
        return False

    def plan(self, *, ladder: bool = False) -> Topology:
        """Return what must exist for them; the ladder only if it is used, or asked for.

        The first countdown of a work queue makes its landing queue, so one that is missing is no difference.
        """
        whole = self.context.plan(self.queues, ladder=ladder or self.has_ladder)
        if ladder or not self.has_ladder:
            return whole
        landings = {self.names.landing(queue) for queue in self.work_queues}
        missing = landings.difference(counts(self.connection, landings))
        return replace(
            whole,
            queues=tuple(it for it in whole.queues if it.name not in missing),
            bindings=tuple(it for it in whole.bindings if it.queue not in missing),
        )

    def insist_on_what_is_needed(self) -> None:
        """Raise Unsuitable if this broker would make something else of the plan."""
        server = Server.of(self.connection.connection.server_properties)
        delayed = [queue.name for queue in self.queues if has_delayed_retry(queue)]
        for problem in problems(server, lanes=self.names.kind, delayed_retry=delayed):
            raise problem

    def others(self) -> list[tuple[Role, str, QueueType]]:
        """Work and dead-letter queues under our prefix that the app may not know: only a worker's ``-Q`` names them."""
        if self.management is None:
            return []
        told, bindings = self.management.queues(), self.management.bindings()
        roles: dict[str, Role] = {
            replace(self.names, kind=kind).return_exchange(): "work" for kind in get_args(QueueType)
        }
        roles[self.names.dead()] = "dead"
        return [(roles[it.exchange], it.queue, kind_told(told, it.queue)) for it in bindings if it.exchange in roles]

    def lanes(self) -> list[Lane]:
        """All lanes and rungs that exist under our prefix, announced or not."""
        known = dict.fromkeys([*self.work_queues, *(WorkQueue(name=name) for name in known_work_queues(self.app))])
        return existing_lanes(
            self.connection, self.names, possible=self.context.wait_queues(known), management=self.management
        )


@contextmanager
def targeting(ctx: click.Context, queue_names: str | None, management_url: str | None) -> Iterator[Target]:
    """Connect, find the HTTP API; whatever goes wrong is said in one sentence."""
    app = ctx.obj.app
    with one_sentence(app):
        queues = queues_of(app, queue_names)
        with connection_of(app) as connection:
            connect(connection)
            target = Target(app, connection, queues)
            target.management, target.no_management = reached(connection, management_url)
            yield target


def connection_of(app: Celery) -> Connection:
    """Not open yet; of several hosts all have their turn, while "shuffle" may try one twice and another never."""
    return app.connection_for_read(failover_strategy="round-robin")


def connect(connection: Connection) -> None:
    """Once over all hosts of a failover URL: an operator can try again."""
    connection.ensure_connection(max_retries=max(0, len(connection.alt) - 1), interval_start=0, interval_step=0)


def queues_of(app: Any, queue_names: str | None) -> list[Queue]:
    """The queues that a worker with this ``-Q`` would consume; all its tasks are loaded, too."""
    app.loader.import_default_modules()
    app.finalize()
    insist_on_rabbitmq(app)
    queues = app.amqp.queues
    if not queue_names:
        return list(queues.consume_from.values())
    known = set(queues)
    try:
        return [queues[name.strip()] for name in queue_names.split(",") if name.strip()]
    except (KeyError, ImproperlyConfigured) as exc:
        raise click.UsageError(f"There is no queue {exc} in task_queues.") from exc
    finally:
        for name in set(queues) - known:  # Celery has made it up, for this command only
            queues.pop(name)


def insist_on_rabbitmq(app: Any) -> None:
    """One sentence, if there is nothing that we could show."""
    insist_on_sound_url(app)
    if not is_rabbitmq(app):
        raise click.UsageError(
            f"The broker is not RabbitMQ, its transport is {transport_of(app)!r}: there are no lanes and no dead "
            "letters to see. Give the URL of a RabbitMQ: broker_url, or celery -b amqp://…"
        )


def insist_on_sound_url(app: Any) -> None:
    """Raise a usage error if the broker's URL cannot be read. It shows nothing of the URL."""
    _note_if_no_app_was_named()
    try:
        check_urls(app)
    except BadBrokerURL as exc:
        raise click.UsageError(str(exc)) from exc
    # A connection that can be made has the name of a library instead.
    if transport_of(app).lower() in AMQP_SCHEMES:
        raise click.UsageError(str(BadBrokerURL(which="The broker's URL")))


def is_app_named() -> bool:
    """Whether ``celery`` was told which app is meant; without ``-A`` it is one without tasks, on the usual broker."""
    context = click.get_current_context(silent=True)
    return context is None or context.find_root().params.get("app", "") is not None


def _note_if_no_app_was_named() -> None:
    if is_app_named():
        return
    said = click.get_current_context().find_root().meta
    if not said.get(_NAMELESS):
        said[_NAMELESS] = True  # once, however often `watch` asks
        note("no app was named, so this is one without tasks and settings. Say which: celery -A your_project dlx …")


def is_rabbitmq(app: Any) -> bool:
    """Whether the app speaks AMQP to its broker, without the warning that a worker gives."""
    return transport_of(app) == "py-amqp"


def transport_of(app: Any) -> str:
    """Return the name of the transport; what the URL begins with, if the library for it is missing."""
    try:
        return str(app.connection_for_read().transport.driver_name)
    except Exception:  # noqa: BLE001 - any transport, each with its own way to miss its library
        return next(map(scheme_of, urls_in(app.conf.broker_read_url)), "")


def reached(connection: Connection, url: str | None) -> tuple[Management | None, str]:
    """The HTTP API, or why there is none; one that somebody named must answer."""
    try:
        management = management_of(connection, url)
        management.version()
    except NoManagement as exc:
        if url is not None:
            raise
        return None, str(exc)
    return management, ""


def kind_told(told: dict[str, dict[str, Any]], name: str) -> QueueType:
    """The type of a queue, by the HTTP API."""
    return "quorum" if told.get(name, {}).get("type") == "quorum" else "classic"


def known_work_queues(app: Any) -> list[str]:
    """Those that the app has, and those that its routes name: Celery makes these when a task is first sent there."""
    routed = _routed(app.conf.task_routes)
    return list(dict.fromkeys([*(queue.alias or queue.name for queue in app.amqp.queues.values()), *routed]))


def _routed(routes: Any) -> Iterator[str]:
    """The queues in Celery's ``task_routes``, in any of its notations but a function."""
    for route in routes if isinstance(routes, (list, tuple)) else [routes]:
        pairs = route.items() if isinstance(route, Mapping) else route if isinstance(route, (list, tuple)) else ()
        for _, where in pairs:
            queue = where.get("queue") if isinstance(where, Mapping) else where
            if queue:
                yield str(getattr(queue, "name", queue))


def all_dead_letter_queues(management: Management, names: Names) -> dict[str, str]:
    """Those under our prefix, also of work queues that only ``celery worker -Q`` names; each with its work queue."""
    found = [binding for binding in management.bindings() if binding.exchange == names.dead()]
    return {binding.queue: binding.routing_key for binding in sorted(found, key=lambda it: it.queue)}


def not_there(names: Iterable[str]) -> bool:
    """Name on stderr the work queues that somebody asked for and that do not exist; whether there are any."""
    told = ", ".join(f"work queue {name}" for name in names)
    if told:
        echo(f"Not found: {told}.", err=True)
    return bool(told)


def note(text: str) -> None:
    """Something beside the result: on stderr, where it does not end up in a file."""
    echo(f"Note: {text}", err=True)
