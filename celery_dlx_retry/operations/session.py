"""An app with an open connection to its broker: what most operations work on."""

from __future__ import annotations

import functools
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

from celery_dlx_retry.app.context import context_of
from celery_dlx_retry.broker.counts import counts
from celery_dlx_retry.broker.lanes import existing_lanes
from celery_dlx_retry.broker.work_queues import declared_kind, found_kind, work_queue
from celery_dlx_retry.errors import Forbidden
from celery_dlx_retry.operations.app_queues import (
    QueuesOnBroker,
    known_work_queues,
    queues_on_broker,
    type_in_api,
    work_queues_of,
)
from celery_dlx_retry.operations.connect import broker_errors, connect, connection_of, find_management
from celery_dlx_retry.operations.monitor import current_user
from celery_dlx_retry.topology.ladder import rungs
from celery_dlx_retry.topology.names import Lane, WorkQueue

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator

    from celery import Celery
    from kombu.connection import Connection
    from kombu.entity import Queue

    from celery_dlx_retry.broker.management import Management
    from celery_dlx_retry.settings import QueueType
    from celery_dlx_retry.topology.specs import Topology

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


@contextmanager
def open_session(
    app: Celery,
    *,
    queues: Iterable[str] = (),
    management_url: str | None = None,
    operator: str = "",
) -> Iterator[BrokerSession]:
    """Load the app's tasks, connect to its broker and find the HTTP API.

    ``queues`` are work queues, by default all of the app. ``operator`` is the user in the audit log, by default the
    user of this process. Raise BrokerUnavailable if there is no connection.
    """
    named = list(queues)
    found = work_queues_of(app, named)
    with connection_of(app) as connection:
        with broker_errors(app):
            connect(connection)
            management, reason = find_management(connection, management_url)
        yield BrokerSession(
            app=app,
            connection=connection,
            queues=found,
            named=bool(named),
            management=management,
            no_management=reason,
            operator=operator,
        )


def operation(
    function: Callable[Concatenate[BrokerSession, Parameters], Result],
) -> Callable[Concatenate[BrokerSession, Parameters], Result]:
    """Decorate a function of a session: it raises BrokerUnavailable if the broker or the connection fails."""

    @functools.wraps(function)
    def run(session: BrokerSession, /, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        with broker_errors(session.app):
            return function(session, *args, **kwargs)

    return run


@dataclass(kw_only=True, eq=False)
class BrokerSession:
    """Made by ``open_session()``, for one thread."""

    app: Celery
    connection: Connection
    queues: list[Queue]
    #: Whether the caller named the queues.
    named: bool
    management: Management | None
    #: Why the HTTP API cannot be used; empty if it can.
    no_management: str
    operator: str

    def __post_init__(self) -> None:
        self.context = context_of(self.app)
        self.names = self.context.names
        self.operator = self.operator or current_user()

    @property
    def vhost(self) -> str:
        """The virtual host of the connection."""
        return self.connection.virtual_host or "/"

    @property
    def work_queues(self) -> list[WorkQueue]:
        """The work queues that the app knows, or those that the caller named."""
        return [work_queue(queue) for queue in self.queues]

    def on_broker(self) -> QueuesOnBroker:
        """Return the queues under our prefix that the app does not know, too; none if the caller named queues."""
        return QueuesOnBroker() if self.named else queues_on_broker(self.management, self.names)

    def dead_letter_queues(self) -> dict[str, list[str]]:
        """Return each dead-letter queue with its work queues, those that the app does not know included."""
        keys = {(self.names.dead_letters(it.dead_letter_key), it.dead_letter_key) for it in self.work_queues}
        found: dict[str, list[str]] = {}
        for name, key in sorted(keys | set(self.on_broker().dead.items())):
            found.setdefault(name, []).append(key)
        return found

    @cached_property
    def types(self) -> dict[str, QueueType | None]:
        """The types that these queues have on the broker; None if they are not known."""
        facts = self.management.queues() if self.management else {}
        return {
            queue.name: type_in_api(facts, queue.name)
            if queue.name in facts
            else declared_kind(queue) or found_kind(self.connection, queue)
            for queue in self.queues
        }

    @cached_property
    def has_ladder(self) -> bool:
        """Whether a process has made the ladder. This looks for two rungs: an operator may have deleted one."""
        whole = rungs(self.names, self.context.ladder)
        with suppress(Forbidden):  # for a user without the permission the ladder does not exist
            return bool(counts(self.connection, [whole.queues[0].name, whole.queues[-1].name]))
        return False

    def forget_types(self) -> None:
        """Ask the broker again, when they are needed, for the types of the queues and for the ladder."""
        self.__dict__.pop("types", None)
        # Without the ladder the question is an error in the log of the broker: it is asked once for a session.
        if not self.__dict__.get("has_ladder", True) and self.management:
            found = map(self.names.lane_of, self.management.queues())
            self.has_ladder = any(lane is not None and lane.is_rung for lane in found)

    def plan(self, *, ladder: bool = False, existing: Container[str] | None = None) -> Topology:
        """Return what must exist for these queues, with the ladder if it exists or ``ladder`` is set.

        The first countdown of a work queue makes its landing queue, so a missing landing queue is not a difference.
        ``existing`` are all queues on the broker, if the caller knows them.
        """
        whole = self.context.plan(self.queues, ladder=ladder or self.has_ladder)
        if ladder or not self.has_ladder:
            return whole
        landings = {self.names.landing(queue) for queue in self.work_queues}
        known = counts(self.connection, landings) if existing is None else existing
        missing = {name for name in landings if name not in known}
        return replace(
            whole,
            queues=tuple(it for it in whole.queues if it.name not in missing),
            bindings=tuple(it for it in whole.bindings if it.queue not in missing),
        )

    def lanes(self) -> list[Lane]:
        """Return all lanes and rungs that exist under our prefix, announced or not."""
        known = dict.fromkeys([*self.work_queues, *(WorkQueue(name=name) for name in known_work_queues(self.app))])
        return existing_lanes(
            self.connection, self.names, possible=self.context.wait_queues(known), management=self.management
        )
