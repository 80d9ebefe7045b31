"""The worker's bootstep: the topology stands before the first task is consumed, at start and after every reconnect."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

from celery.bootsteps import StartStopStep
from celery.exceptions import WorkerShutdown
from celery.platforms import EX_FAILURE
from celery.utils.log import get_logger
from click import ClickException

from celery_dlx_retry.broker.declare import check
from celery_dlx_retry.broker.queues import check_prefix, has_delayed_retry
from celery_dlx_retry.core.server import Server, problems
from celery_dlx_retry.core.topology import foundation
from celery_dlx_retry.errors import ConfigurationError, Forbidden, Missing, TopologyError
from celery_dlx_retry.worker.runtime import runtime_of
from celery_dlx_retry.worker.strays import keep_strays
from celery_dlx_retry.worker.versions import wait_for_what_is_given

if TYPE_CHECKING:
    from celery import Celery
    from kombu.connection import Connection
    from kombu.entity import Queue

logger = get_logger(__name__)


def install(app: Celery) -> None:
    """Add the bootstep to an app's workers; using DLXRetryTask does it, this is for those who want to see it."""
    app.steps["consumer"].add(Topology)


class Topology(StartStopStep):
    """Declare, or check, lanes, return, dead-letter and orphan parts, and bind the consumed queues."""

    # After Tasks the work queues are declared; nothing is consumed before the last step, Evloop.
    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, consumer: Any, **options: Any) -> None:
        flags = {name: value for name, value in options.items() if name.startswith("dlx_") and value is not None}
        self._runtime = runtime_of(consumer.app)
        self._has_stood = False
        self._runtime.life = secrets.token_hex(8)
        try:
            self._runtime.use_flags(flags)
            self.enabled = self._runtime.is_rabbitmq
            # Before the pool forks: its children inherit what is computed here.
            self._runtime.foresee()
            # Before the queues are declared: their arguments cannot be changed afterwards.
            for queue in consumer.app.amqp.queues.consume_from.values() if self.enabled else ():
                check_prefix(queue, self._runtime.names)
        except ConfigurationError as exc:
            raise ClickException(str(exc)) from exc  # one sentence and exit code 1, where the command line can show it
        if self.enabled:
            keep_strays(consumer)
        super().__init__(consumer, **options)

    def start(self, consumer: Any) -> None:
        """Called at every connect, so all of it can be repeated."""
        self._runtime.consumer = consumer
        wait_for_what_is_given(consumer.pool)
        queues = [*consumer.app.amqp.queues.consume_from.values()]
        try:
            self._know(consumer.connection, queues)
            topology = self._runtime.stand(consumer.connection, queues)
        except (TopologyError, ConfigurationError) as exc:
            # Without its topology a worker would lose what it retries; better that it does not run.
            logger.critical("%s", exc)
            raise WorkerShutdown(EX_FAILURE) from exc
        self._has_stood = True
        logger.info(
            "topology stands prefix=%s lanes=%d work_queues=%d",
            self._runtime.settings.prefix, len(self._runtime.exact_lanes), len(consumer.task_consumer.queues),
        )  # fmt: skip
        logger.debug("topology %r", topology)
        self._runtime.open_pipeline()

    def stop(self, _consumer: Any) -> None:
        """Called when the worker stops, and when its connection is lost."""
        self._runtime.close_pipeline()

    def _know(self, connection: Connection, queues: list[Queue]) -> None:
        """Raise Unsuitable unless the broker can do what we need of it; a failover may have led to another one."""
        server = Server.of(connection.connection.server_properties)
        delayed = [queue.name for queue in queues if has_delayed_retry(queue)]
        for problem in problems(server, lanes=self._runtime.settings.queue_type, delayed_retry=delayed):
            raise problem
        if not server.is_rabbitmq:
            logger.warning("The broker is %s, not RabbitMQ: what is promised was never tested with it.", server)
        if self._has_stood and self._is_bare(connection):
            logger.warning(
                "What stood at the last connect is not there: this is another broker, or it has lost its data. What "
                "waits at the other one stays there until a worker is back. Several broker URLs are meant for the "
                "nodes of one cluster."
            )

    def _is_bare(self, connection: Connection) -> bool:
        # Not by the cluster's name: unless somebody sets it, each node may tell its own.
        try:
            check(connection, foundation(self._runtime.names))
        except Missing:
            return True
        except Forbidden:
            return False
        return False
